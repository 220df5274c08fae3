/* passes.c - the passes by name. */
#include "passes/passes.h"

#include <string.h>

static const char *const names[] = {
#define PASS(id, name, about) name,
#include "passes/passes.def"
#undef PASS
};
static const char *const abouts[] = {
#define PASS(id, name, about) about,
#include "passes/passes.def"
#undef PASS
};

const char *pass_name(enum pass pass)
{
    return names[pass];
}

const char *pass_about(enum pass pass)
{
    return abouts[pass];
}

bool pass_find(const char *name, enum pass *out)
{
    for (int i = 0; i < PASS_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum pass)i;
            return true;
        }
    return false;
}
