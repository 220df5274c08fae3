# Benchmarks run by hand: "snug_bench(NAME LIBRARIES...)" builds bench/NAME.c as build/bench/NAME.
# They are not part of the default build: `cmake --build build --target bench_NAME`.
function(snug_bench name)
    foreach(library ${ARGN})
        if(NOT TARGET ${library})
            return()
        endif()
    endforeach()
    add_executable(bench_${name} EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/${name}.c)
    target_link_libraries(bench_${name} PRIVATE ${ARGN})
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

snug_bench(plan snug_mem)
snug_bench(pool snug_mem)
snug_bench(kernels snug_backends)
snug_bench(bound snug_backends)
snug_bench(snapshot snug_doctor)
snug_bench(placement snug_server)
snug_bench(events snug_server)
