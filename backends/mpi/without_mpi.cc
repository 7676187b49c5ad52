// The program without MPI: it must not run as one of several ranks, which would all do the same
// work and write the same files.
#include <string>

#include "backends/mpi/join_ranks.h"

namespace twinrun {

Result<std::unique_ptr<Communicator>> join_ranks() {
  if (started_ranks() == 1) return std::unique_ptr<Communicator>();
  return Error{
      "this build of twinrun has no MPI, and a launcher started it as one of several ranks", "",
      "start twinrun_mpi, which -DTWINRUN_MPI=ON builds "
      "(docs/developers/processors.md#several-processes-by-mpi); or start it without mpirun; or, "
      "for processes that are independent of each other, without its variables: env -u "
      "OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u PMIX_RANK twinrun ...",
      Error::Kind::kUnavailable};
}

}  // namespace twinrun
