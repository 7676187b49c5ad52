// Whether a sanitizer slows this build: loops over random cases are shorter then.
#pragma once

namespace twinrun {

#ifdef TWINRUN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace twinrun
