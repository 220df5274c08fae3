set(SOURCES passes.c rewrite.c autocast.c recompute.c update.c layout.c fuse.c)
set(TESTS)
