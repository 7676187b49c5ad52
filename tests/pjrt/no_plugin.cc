// A shared library that is no PJRT plugin, for the test of that error.
extern "C" int NotGetPjrtApi() { return 0; }
