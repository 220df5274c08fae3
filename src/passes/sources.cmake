set(SOURCES passes.c rewrite.c autocast.c checkpoint.c loss_chunk.c recompute.c update.c update_early.c layout.c fuse.c)
set(TESTS)
