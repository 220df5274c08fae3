# Helper programs of the tests in other languages; each waits for the modules that it needs.
if(TARGET snug_passes AND TARGET snug_backends)
    add_executable(optool ${CMAKE_SOURCE_DIR}/tests/support/optool.c
        ${CMAKE_SOURCE_DIR}/tests/support/optool_steps.c)
    target_include_directories(optool PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
    target_link_libraries(optool PRIVATE snug_passes snug_backends snug_ir snug_base)
    set_target_properties(optool PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endif()
if(TARGET snug_nn)
    add_executable(ptfile_tool ${CMAKE_SOURCE_DIR}/tests/support/ptfile_tool.c)
    target_link_libraries(ptfile_tool PRIVATE snug_nn ZLIB::ZLIB)
    set_target_properties(ptfile_tool PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endif()
