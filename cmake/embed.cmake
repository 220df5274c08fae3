# snug_embed(NAME FILE OUT) writes C source OUT that defines NAME[], the bytes of FILE and a NUL, and
# NAME_bytes; again whenever FILE changes.
function(snug_embed name file out)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
    file(CONFIGURE OUTPUT ${out} CONTENT
        "extern const unsigned char ${name}[];\nextern const unsigned ${name}_bytes;\nconst unsigned char ${name}[] = {\n${bytes}0};\nconst unsigned ${name}_bytes = sizeof ${name} - 1;\n")
endfunction()
