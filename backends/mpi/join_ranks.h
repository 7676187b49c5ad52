// The ranks of MPI: how a process finds out that a launcher (mpirun, srun) started it as one of
// several, and joins the others. Only harness/cli includes this; engines know a Communicator. There
// are two implementations: that of `twinrun` refuses to run as one of several, that of `twinrun_mpi`
// (CMake's TWINRUN_MPI) joins them.
//
//   TWINRUN_ASSIGN(std::unique_ptr<Communicator> ranks, join_ranks());   // nullptr: alone
#pragma once

#include <memory>

#include "backends/core/communicator.h"
#include "program/base/result.h"

namespace twinrun {

// How many processes the launcher started, by the variables that Open MPI, MPICH, Intel MPI and
// PMIx set for each; 1 if there was none. PMIx tells the rank only: 2 stands for "more than one".
int started_ranks();

// Called once, before anything that takes long. nullptr: this process is alone. The destructor of
// the communicator waits for the other ranks. Errors: a build without MPI is one of several ranks.
Result<std::unique_ptr<Communicator>> join_ranks();

}  // namespace twinrun
