# Embeds FILES in one C++ source that defines FUNCTION of HEADER: a span of ELEMENT, {name, text}, in the given order. A name is the
# file's name up to the first point, or the whole name with WHOLE_NAMES; for files in ROOT/docs, if ROOT is given, it is the path
# from ROOT. Links to source maps are removed, because the maps are not embedded.
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
