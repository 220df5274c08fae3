include(${CMAKE_SOURCE_DIR}/cmake/isa.cmake)
# Thread-sanitizer builds run kernels serially: libgomp is not instrumented.
if(OpenMP_C_FOUND AND NOT SNUG_TSAN)
    set(SNUG_OPENMP ON)
    list(APPEND LIBS OpenMP::OpenMP_C)
else()
    set(SNUG_OPENMP OFF)
    add_compile_options(-Wno-unknown-pragmas)
endif()

list(APPEND SOURCES exec.c exec_profile.c exec_report.c exec_storage.c interpose.c)
list(APPEND SOURCES cpu/about.c cpu/dnnl.c cpu/isa.c cpu/kernels.c cpu/wait.c)
list(APPEND SOURCES
    cpu/argmax.c cpu/dropout.c cpu/embed.c cpu/ew.c cpu/ew_binary.c cpu/ew_unary.c cpu/lanes.c
    cpu/loss_class.c cpu/loss_ew.c cpu/nd.c cpu/optim.c cpu/reduce.c cpu/shape.c cpu/softmax.c
    cpu/update.c)
if(DNNL_LIBRARY)
    set(SNUG_DNNL 1)
    list(APPEND LIBS ${DNNL_LIBRARY})
else()
    set(SNUG_DNNL 0)
endif()
set_source_files_properties(${dir}/cpu/dnnl.c PROPERTIES COMPILE_DEFINITIONS SNUG_DNNL=${SNUG_DNNL})
if("avx512" IN_LIST SNUG_ISAS)
    list(APPEND SOURCES cpu/gemm_bf16.c)
    set_source_files_properties(${dir}/cpu/gemm_bf16.c PROPERTIES COMPILE_OPTIONS
        "-O3;${SNUG_ISA_FLAGS_avx512};-mavx512bf16;-DISA_SUFFIX=avx512")
endif()
# Compiled once per instruction set; see cpu/kernels.def.
set(ISA_SOURCES cpu/gemm.c cpu/gemm_op.c cpu/attention.c cpu/rope.c cpu/conv.c cpu/conv_own.c cpu/pool.c cpu/norm_stats.c cpu/norm_apply.c cpu/norm_grad.c cpu/prelu.c cpu/recurrent.c cpu/reorder.c)
list(APPEND ISA_SOURCES cpu/lanes_ew.c cpu/lanes_loss.c cpu/lanes_optim.c cpu/lanes_sum.c)
set(TESTS cpu/kernel_test_support.c cpu/vec_test.c cpu/gemm_test.c cpu/conv_test.c cpu/pool_test.c cpu/norm_test.c cpu/prelu_test.c cpu/reorder_test.c)
list(APPEND TESTS cpu/ew_test.c cpu/loss_test.c cpu/reduce_test.c cpu/shape_test.c cpu/update_test.c)

snug_isa_objects(snug_kernels ${dir} ${ISA_SOURCES})
list(APPEND LIBS ${snug_kernels_OBJECTS})
