# Writes OUTPUT, the source that holds the text of PAGE.
file(READ ${PAGE} text)
file(WRITE ${OUTPUT} "#include \"needle/inspect/inside_page.h\"\n\nnamespace needle {\n\nconst std::string_view kInsidePage =\n    R\"needle(")
file(APPEND ${OUTPUT} "${text}")
file(APPEND ${OUTPUT} ")needle\";\n\n}  // namespace needle\n")
