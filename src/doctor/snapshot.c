/* snapshot.c - names of what a snapshot holds, and its end. */
#include "doctor/snapshot.h"

const char *snap_action_name(enum snap_action action)
{
    static const char *const names[] = {
#define X(name, text) text,
#include "doctor/snapshot_actions.def"
#undef X
    };
    return names[action];
}

void snapshot_free(struct snapshot *s)
{
    if (!s)
        return;
    mem_free(s->devices);
    mem_free(s->segments);
    mem_free(s->blocks);
    mem_free(s->events);
    mem_free(s->lives);
    mem_free(s->event_life);
    mem_free(s->annotations);
    mem_free(s->streams);
    mem_free(s->pools);
    mem_free(s->texts);
    mem_free(s->frames);
    mem_free(s->stacks);
    mem_free(s->stack_frames);
    mem_free(s->origins);
    mem_free(s->warnings);
    arena_release(&s->arena);
    mem_free(s);
}
