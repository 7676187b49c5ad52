// Names of planes, lines and stats that XProf looks for
// (xla/tsl/profiler/utils/xplane_schema.cc in openxla/xla).
#pragma once

#include <string_view>

namespace twinrun::xplane {

inline constexpr std::string_view kTpuPlane = "/device:TPU:";  // and the number of the core
inline constexpr std::string_view kGpuPlane = "/device:GPU:";
inline constexpr std::string_view kHostPlane = "/host:CPU";

// Its events' metadata are the programs: the id is program_id.
inline constexpr std::string_view kModulePlane = "/host:metadata";

inline constexpr std::string_view kSteps = "Steps";
inline constexpr std::string_view kModules = "XLA Modules";
inline constexpr std::string_view kOps = "XLA Ops";
inline constexpr std::string_view kScopes = "Framework Name Scope";

inline constexpr std::string_view kGroupId = "group_id";
inline constexpr std::string_view kStepNum = "step_num";
// The duration by the device's own clock, where it differs from that of the capture.
inline constexpr std::string_view kDeviceDuration = "device_duration_ps";
inline constexpr std::string_view kProgramId = "program_id";
inline constexpr std::string_view kSymbolId = "symbol_id";
inline constexpr std::string_view kCategory = "hlo_category";
inline constexpr std::string_view kHloOp = "hlo_op";
inline constexpr std::string_view kHloModule = "hlo_module";
inline constexpr std::string_view kFrameworkOp = "tf_op";
inline constexpr std::string_view kFlops = "flops";
inline constexpr std::string_view kModelFlops = "model_flops";
inline constexpr std::string_view kBytes = "bytes_accessed";
inline constexpr std::string_view kBytesOf = "memory_access_breakdown";
inline constexpr std::string_view kHloProto = "Hlo Proto";
inline constexpr std::string_view kDeviceType = "device_type_string";
inline constexpr std::string_view kPeakTeraflops = "peak_teraflops_per_second";
inline constexpr std::string_view kPeakGigabytes = "peak_hbm_bw_gigabytes_per_second";
inline constexpr std::string_view kMatrixPercent = "matrix_unit_utilization_percent";
inline constexpr std::string_view kMemoryPercent = "hbm_utilization_percent";
inline constexpr std::string_view kCoreDetails = "core_details";
inline constexpr std::string_view kStageId = "_ipl_stage_id";
inline constexpr std::string_view kStageName = "_ipl_stage_name";
inline constexpr std::string_view kStageCategory = "_ipl_stage_cat";

inline constexpr std::string_view kInfeed = "infeed";  // the category of waiting for input

}  // namespace twinrun::xplane
