set(SOURCES
    hf.c hf_config.c hf_save.c init.c layer.c layer_attention.c layer_blocks.c layer_conv.c layer_misc.c
    layer_norm.c layer_params.c layer_pool.c layer_recurrent.c linear.c
    model.c model_parse.c
    pickle_check.c pickle_globals.c pickle_read.c pickle_value.c pickle_write.c
    ptfile_read.c ptfile_write.c
    safetensors.c safetensors_header.c
    tensorfile.c tensorfile_match.c tensorfile_types.c
    transformer.c transformer_forward.c weights.c)
set(TESTS hf_test.c layer_test.c model_test.c pickle_test.c ptfile_test.c safetensors_test.c tensorfile_test.c
    transformer_test.c)
set(FUZZ hf_config_fuzz.c model_fuzz.c pickle_fuzz.c ptzip_fuzz.c safetensors_fuzz.c)
set(LIBS PkgConfig::LIBZIP)
if(OpenMP_C_FOUND AND NOT SNUG_TSAN)
    list(APPEND LIBS OpenMP::OpenMP_C) # init.c
else()
    add_compile_options(-Wno-unknown-pragmas)
endif()
# Adapters.
list(APPEND SOURCES adapter.c peft.c)
list(APPEND TESTS adapter_test.c)
