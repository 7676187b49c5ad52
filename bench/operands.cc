// Files of operands and results in a folder that lives as long as the case is prepared.
#include "bench/operands.h"

#include <fstream>

namespace twinrun {

void add_processes(PeerProcesses& processes, const std::string& name, const std::string& line,
                   const KernelCase& ours, double most, std::vector<Side>& sides) {
  const BenchFolder folder;
  for (size_t i = 0; i < ours.inputs.size(); ++i) {
    std::ofstream file(folder.path + "/" + std::to_string(i), std::ios::binary);
    file.write(reinterpret_cast<const char*>(ours.inputs[i].raw()),
               static_cast<std::streamsize>(ours.inputs[i].bytes()));
  }
  Tensor out = Tensor::zeros(ours.output.type());
  const auto check = [&] {
    std::ifstream file(folder.path + "/out", std::ios::binary);
    file.read(reinterpret_cast<char*>(out.as<float>().data()),
              static_cast<std::streamsize>(out.bytes()));
    return difference(ours.output.as<float>().data(), out.as<float>().data(), out.elements(), most);
  };
  for (Side& side : processes.prepare(name, line + " " + folder.path, check)) {
    sides.push_back(std::move(side));
  }
}

}  // namespace twinrun
