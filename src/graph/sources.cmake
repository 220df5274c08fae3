set(SOURCES nodes.c nodes_show.c graph.c shape.c expand.c presets.c resolve.c check.c values.c set.c insert.c key.c)
set(TESTS nodes_test.c graph_test.c check_test.c corpus_test.c key_test.c)
set(FUZZ graph_fuzz.c)
