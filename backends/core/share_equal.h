// Replicas whose state has the same bits hold it once. A replica that diverges has its own copy,
// and one that comes back shares again.
//
//   share_equal(states);   // afterwards states[5].vars[0].raw() == states[0].vars[0].raw(), if equal
#pragma once

#include "backends/core/backend.h"

namespace twinrun {

// For each variable, makes tensors of the same bits one object. Where more than sixteen different
// ones were found, a further replica is compared with these and the one before it only.
void share_equal(States& states);

}  // namespace twinrun
