// A shared library that is no plugin.
extern "C" int NotGetPjrtApi() { return 0; }
