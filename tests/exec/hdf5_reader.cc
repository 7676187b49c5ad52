// `twinrun read-hdf5` as a program of its own, for the tests with mutated files: no other code is
// linked that such a file could reach.
#include <string>

#include "checkpoints/container/hdf5_tree.h"

int main(int argc, char** argv) {
  return argc == 2 ? twinrun::serve_hdf5_tree(std::stoull(argv[1])) : 2;
}
