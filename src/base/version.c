/* version.c - the commit of the build, given by CMake at configure time. */
#include "base/version.h"

#ifndef SNUG_COMMIT
#define SNUG_COMMIT "unknown"
#endif

const char *snug_commit(void)
{
    return SNUG_COMMIT;
}
