# Writes FILES into one C++ source, as FUNCTION of HEADER: a span of ELEMENT, {name, text} in the order given. Names are those of
# the files without what follows the first point; whole ones with WHOLE_NAMES; for files below ROOT, if it is given, their path
# from there. A link to a source map, which nobody here
# has, is left out.
set(body "")
foreach(file ${FILES})
  if(WHOLE_NAMES)
    get_filename_component(name ${file} NAME)
  else()
    get_filename_component(name ${file} NAME_WE)
  endif()
  if(ROOT AND file MATCHES "^${ROOT}/docs/")
    file(RELATIVE_PATH name ${ROOT} ${file})
  endif()
  file(READ ${file} text)
  string(REGEX REPLACE "/[/*]# sourceMappingURL=[^\n]*" "" text "${text}")
  string(APPEND body "      {\"${name}\", R\"~~embedded~~(${text})~~embedded~~\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nnamespace twinrun {\n
std::span<const ${ELEMENT}> ${FUNCTION}() {\n  static const ${ELEMENT} files[] = {\n${body}  };\n  return files;\n}\n
}  // namespace twinrun\n")
