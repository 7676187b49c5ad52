# Writes FILES into one C++ source: twinrun::library_files() is {name, text} in name order.
set(body "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND body "      {\"${name}\", R\"~~toml~~(${text})~~toml~~\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"scenarios/library.h\"\n\nnamespace twinrun {\n
std::span<const LibraryFile> library_files() {\n  static const LibraryFile files[] = {\n${body}  };\n  return files;\n}\n
}  // namespace twinrun\n")
