set(SOURCES nodes.c nodes_show.c)
