/* slot.c - foreground runs on devices. */
#include "mem/slot.h"

#include "base/env.h"

#include <stdio.h>
#include <string.h>

const char *slot_name(const struct device *d)
{
    return d->uuid[0] ? d->uuid : d->id;
}

/* Letters, digits, "-", "_" and "." of a name; the rest becomes "_". */
static void slot_path(const char *name, char *out, size_t cap)
{
    char dir[1024], file[96];
    size_t n = 0;
    for (; name[n] && n < sizeof file - 6; n++) {
        char c = name[n];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || c == '_' || (c == '.' && n > 0);
        file[n] = plain ? c : '_';
    }
    (void)snprintf(file + n, sizeof file - n, ".slot");
    (void)path_join(path_join(snug_home(), "slots", dir, sizeof dir), file, out, cap);
}

enum status slot_hold(struct slot *s, const char *name, struct err *e)
{
    char dir[1024], path[1200];
    *s = (struct slot){.file.fd = -1};
    TRY(dir_make(path_join(snug_home(), "slots", dir, sizeof dir), e));
    slot_path(name, path, sizeof path);
    TRY(shared_open(&s->file, path, true, e));
    for (s->at = 0; s->at < SLOT_PLACES; s->at++)
        if (shared_try(&s->file, s->at))
            return ST_OK;
    shared_close(&s->file);
    s->file.fd = -1;
    return err_set(e, ST_FULL, "%d runs are on \"%s\" already", SLOT_PLACES, name);
}

void slot_release(struct slot *s)
{
    if (s->file.fd >= 0)
        shared_close(&s->file);
    s->file.fd = -1;
}

bool slot_held(const char *name)
{
    char path[1200];
    struct shared file;
    struct err ignored;
    slot_path(name, path, sizeof path);
    if (shared_open(&file, path, false, &ignored) != ST_OK)
        return false;
    bool held = shared_locked(&file, 0, SLOT_PLACES);
    shared_close(&file);
    return held;
}
