// `twinrun read-hdf5` alone, for tests of what becomes of it: nothing else is linked that a mutated file could reach.
#include <string>

#include "checkpoints/container/hdf5_tree.h"

int main(int argc, char** argv) {
  return argc == 2 ? twinrun::serve_hdf5_tree(std::stoull(argv[1])) : 2;
}
