set(SOURCES snapshot.c)
