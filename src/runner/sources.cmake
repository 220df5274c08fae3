set(SOURCES flow.c run.c data_nodes.c layer_nodes.c small_ops.c model_nodes.c transformer_nodes.c text_nodes.c text_store.c lm_nodes.c
    train_node.c io_nodes.c visualize.c raster.c what_if.c oom.c place.c memory.c cache.c)
list(APPEND SOURCES adapter_nodes.c function_nodes.c)
set(TESTS oom_test.c cache_test.c modes_test.c)
