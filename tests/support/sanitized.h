// Whether this build runs under a sanitizer, which is slow: tests then draw fewer random cases.
#pragma once

namespace twinrun {

#ifdef TWINRUN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace twinrun
