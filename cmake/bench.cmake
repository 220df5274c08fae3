# Benchmarks run by hand: "snug_bench(NAME LIBRARIES...)" builds bench/NAME.c as build/bench/NAME.
# They are not part of the default build: `cmake --build build --target bench_NAME`.
function(snug_bench name)
    foreach(library ${ARGN})
        if(NOT TARGET ${library})
            return()
        endif()
    endforeach()
    get_filename_component(stem ${name} NAME)
    add_executable(bench_${stem} EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/${name}.c)
    target_link_libraries(bench_${stem} PRIVATE ${ARGN})
    set_target_properties(bench_${stem} PROPERTIES
        OUTPUT_NAME ${stem} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

snug_bench(plan snug_mem)
snug_bench(pool snug_mem)
snug_bench(kernels snug_backends)
snug_bench(bound snug_backends)
snug_bench(snapshot snug_doctor)
snug_bench(placement snug_server)
snug_bench(store snug_server)
# bench/server/run starts a server for these.
snug_bench(server/events snug_base)
snug_bench(server/submit snug_base)
