set(SOURCES
    source.c idx.c idx_set.c cifar.c cifar_pickle.c folder.c dataset.c
    image.c image_resize.c image_geometry.c image_color.c
    transform.c pipeline.c randaugment.c sampler.c loader.c tokens.c)
set(TESTS dataset_test.c image_test.c transform_test.c loader_test.c tokens_test.c)
set(FUZZ idx_fuzz.c image_fuzz.c cifar_pickle_fuzz.c token_file_fuzz.c)
set(LIBS ZLIB::ZLIB PNG::PNG JPEG::JPEG pthread)
