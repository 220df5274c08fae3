/* sim_card.c - the memory of one simulated card, shared by processes through a file of slots. */
#include "mem/sim.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/shared.h"
#include "base/str.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOCK_WAIT_MS = 60000, REOPENS_MAX = 8 };
enum { LOCK_TABLE = 0, LOCK_NEXT = 1 }; /* bytes */

struct header {
    char magic[8];
    uint32_t version, slots;
    int64_t capacity_bytes;
    uint64_t check;
    char rest[32];
};
struct slot {
    int64_t pid, context_bytes, held_bytes, others_bytes;
    uint64_t check;
    char rest[24];
};
struct table {
    struct header header;
    struct slot slot[SIM_SLOTS];
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct slot) == 64, "FORMAT in sim.h");

struct sim_card {
    struct sim_spec spec;
    char dir[900], path[1024];
    pthread_mutex_t mutex; /* for all below */
    struct shared file;    /* open while attached */
    int slot;              /* -1: not attached */
    int64_t pid;           /* who attached */
    int64_t held_bytes;
    bool behind;          /* the slot in the file says more than is held: it could not be written */
    int64_t others_bytes; /* and as last counted */
    struct table table;   /* as last read */
};

static const char magic[8] = {'s', 'n', 'u', 'g', 'c', 'a', 'r', 'd'};

static uint64_t check_of(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static int64_t slot_at(int i)
{
    return (int64_t)(sizeof(struct header) + (size_t)i * sizeof(struct slot));
}

/* Whoever has the second lock is next for the first: a process that comes again at once cannot
 * pass those that wait. */
static enum status lock_table(struct sim_card *c, struct err *e)
{
    TRY(shared_lock(&c->file, LOCK_NEXT, LOCK_WAIT_MS, e));
    enum status st = shared_lock(&c->file, LOCK_TABLE, LOCK_WAIT_MS, e);
    shared_unlock(&c->file, LOCK_NEXT);
    return st;
}

/* ---- the file, under the lock of byte 0 ---- */

static bool header_good(const struct header *h)
{
    return memcmp(h->magic, magic, sizeof magic) == 0 && h->version == SIM_VERSION &&
           h->slots == SIM_SLOTS && h->check == check_of(h, offsetof(struct header, check)) &&
           h->capacity_bytes > 0;
}

static bool slot_good(const struct slot *s)
{
    return s->check == check_of(s, offsetof(struct slot, check)) && s->pid > 0 &&
           s->context_bytes >= 0 && s->held_bytes >= 0 && s->others_bytes >= 0;
}

/* Whether another open of the file has a slot. */
static bool in_use(const struct sim_card *c)
{
    return shared_locked(&c->file, slot_at(0), slot_at(SIM_SLOTS) - slot_at(0));
}

static bool is_live(const struct sim_card *c, int i)
{
    return i == c->slot || shared_locked(&c->file, slot_at(i), 1);
}

static enum status write_header(struct sim_card *c, struct err *e)
{
    struct header *h = &c->table.header;
    *h = (struct header){
        .version = SIM_VERSION, .slots = SIM_SLOTS, .capacity_bytes = c->spec.capacity_bytes};
    memcpy(h->magic, magic, sizeof magic);
    h->check = check_of(h, offsetof(struct header, check));
    return shared_write(&c->file, 0, h, sizeof *h, e);
}

static enum status make_anew(struct sim_card *c, struct err *e)
{
    c->table = (struct table){0};
    TRY(shared_clear(&c->file, (int64_t)sizeof c->table, e));
    return write_header(c, e);
}

static enum status damaged(const struct sim_card *c, struct err *e)
{
    (void)err_set(
        e, ST_CORRUPT, "\"%s\" is damaged, and processes hold memory of that card (%s)", c->path,
        c->spec.name);
    err_hint(e, "once they have ended it is made anew");
    return ST_CORRUPT;
}

/* The file and this process have to agree on the card. Nobody on it: it is what is described here.
 */
static enum status agree(struct sim_card *c, struct err *e)
{
    char ours[32], theirs[32];
    int64_t said = c->table.header.capacity_bytes;
    if (said == c->spec.capacity_bytes)
        return ST_OK;
    if (c->slot < 0 && !in_use(c))
        return write_header(c, e);
    (void)err_set(
        e, ST_INVALID,
        "card %s (%s): its size is %s here, and %s for the processes that use it now", c->spec.name,
        c->spec.uuid, bytes_text(c->spec.capacity_bytes, ours, sizeof ours),
        bytes_text(said, theirs, sizeof theirs));
    err_hint(e, "give it another uuid, or wait until they have ended");
    return ST_INVALID;
}

static enum status read_table(struct sim_card *c, struct err *e)
{
    bool whole = shared_size(&c->file) == (int64_t)sizeof c->table;
    if (whole)
        TRY(shared_read(&c->file, 0, &c->table, sizeof c->table, e));
    if (!whole || !header_good(&c->table.header)) {
        if (c->slot >= 0 || in_use(c))
            return damaged(c, e);
        return make_anew(c, e);
    }
    return agree(c, e);
}

static enum status write_slot(struct sim_card *c, int64_t held_bytes, struct err *e)
{
    struct slot s = {
        .pid = c->pid,
        .context_bytes = c->spec.context_bytes,
        .held_bytes = held_bytes,
        .others_bytes = c->spec.others_bytes};
    s.check = check_of(&s, offsetof(struct slot, check));
    TRY(shared_write(&c->file, slot_at(c->slot), &s, sizeof s, e));
    c->table.slot[c->slot] = s;
    c->held_bytes = held_bytes;
    c->behind = false;
    return ST_OK;
}

/* What is free, others at the most that anybody here says; clears what the dead left in the table
 * (not in the file). */
static enum status count_free(struct sim_card *c, int64_t *free_bytes, struct err *e)
{
    int64_t left = c->table.header.capacity_bytes, others = c->spec.others_bytes;
    for (int i = 0; i < SIM_SLOTS; i++) {
        struct slot *s = &c->table.slot[i];
        if (s->pid == 0 && s->check == 0 && i != c->slot)
            continue;
        if (!is_live(c, i)) {
            *s = (struct slot){0};
            continue;
        }
        if (i == c->slot && c->behind)
            TRY(write_slot(c, c->held_bytes, e));
        if (!slot_good(s) || (i == c->slot && s->held_bytes != c->held_bytes) ||
            s->held_bytes > left || s->context_bytes > left - s->held_bytes)
            return damaged(c, e);
        left -= s->context_bytes + s->held_bytes;
        others = s->others_bytes > others ? s->others_bytes : others;
    }
    c->others_bytes = others;
    *free_bytes = left > others ? left - others : 0;
    return ST_OK;
}

/* ---- attaching ---- */

/* Opens the file and locks its table: the file that has the name, not one deleted meanwhile. */
static enum status open_locked(struct sim_card *c, bool make, struct err *e)
{
    for (int i = 0; i < REOPENS_MAX; i++) {
        TRY(shared_open(&c->file, c->path, make, e));
        enum status st = lock_table(c, e);
        if (st == ST_OK && !shared_gone(&c->file))
            return ST_OK;
        shared_close(&c->file);
        if (st != ST_OK)
            return st;
    }
    return err_set(e, ST_IO, "could not keep \"%s\": it is deleted again and again", c->path);
}

static enum status no_room(const struct sim_card *c, int64_t need, int64_t left, struct err *e)
{
    char a[32], b[32], t[32];
    return err_set(
        e, ST_OOM, "card %s has no room for %s: %s of its %s are free", c->spec.name,
        bytes_text(need, a, sizeof a), bytes_text(left, b, sizeof b),
        bytes_text(c->spec.capacity_bytes, t, sizeof t));
}

static enum status claim_slot(struct sim_card *c, struct err *e)
{
    for (int i = 0; i < SIM_SLOTS; i++) {
        if (!shared_try(&c->file, slot_at(i)))
            continue;
        c->slot = i;
        c->pid = (int64_t)getpid();
        return write_slot(c, 0, e);
    }
    return err_set(
        e, ST_IO, "card %s: all %d places for processes are taken", c->spec.name, SIM_SLOTS);
}

static enum status attach(struct sim_card *c, struct err *e)
{
    int64_t left = 0;
    TRY(dir_make(c->dir, e));
    TRY(open_locked(c, true, e));
    enum status st = read_table(c, e);
    if (st == ST_OK)
        st = count_free(c, &left, e);
    if (st == ST_OK && left < c->spec.context_bytes) {
        st = no_room(c, c->spec.context_bytes, left, e);
        err_hint(
            e, "so much is the context of one process: `snug devices` shows who is on the card");
    }
    if (st == ST_OK)
        st = claim_slot(c, e);
    if (st == ST_OK) {
        shared_unlock(&c->file, LOCK_TABLE);
        return ST_OK;
    }
    shared_close(&c->file);
    c->slot = -1;
    return st;
}

struct sim_card *sim_card_new(const struct sim_spec *spec, const char *dir)
{
    struct sim_card *c = mem_alloc(sizeof *c);
    c->spec = *spec;
    c->file.fd = -1;
    c->slot = -1;
    (void)snprintf(c->dir, sizeof c->dir, "%s", dir);
    (void)snprintf(c->path, sizeof c->path, "%s/%s.card", c->dir, spec->uuid);
    ASSERT(pthread_mutex_init(&c->mutex, NULL) == 0);
    return c;
}

void sim_card_detach(struct sim_card *c)
{
    (void)pthread_mutex_lock(&c->mutex);
    shared_close(&c->file); /* its locks go with it: the slot is nobody's */
    c->slot = -1;
    c->held_bytes = 0;
    (void)pthread_mutex_unlock(&c->mutex);
}

void sim_card_free(struct sim_card *c)
{
    if (!c)
        return;
    sim_card_detach(c);
    (void)pthread_mutex_destroy(&c->mutex);
    mem_free(c);
}

enum status sim_card_attach(struct sim_card *c, struct err *e)
{
    (void)pthread_mutex_lock(&c->mutex);
    enum status st = c->slot >= 0 ? ST_OK : attach(c, e);
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}

/* ---- holding ---- */

static enum status deleted(const struct sim_card *c, struct err *e)
{
    (void)err_set(e, ST_CORRUPT, "\"%s\" was deleted while this process is on the card", c->path);
    err_hint(e, "start it again");
    return ST_CORRUPT;
}

static enum status take(struct sim_card *c, int64_t bytes, struct err *e)
{
    int64_t left = 0;
    if (shared_gone(&c->file))
        return deleted(c, e);
    TRY(read_table(c, e));
    TRY(count_free(c, &left, e));
    if (bytes > left)
        return no_room(c, bytes, left, e);
    return write_slot(c, c->held_bytes + bytes, e);
}

static enum status charge(struct sim_card *c, int64_t bytes, struct err *e)
{
    struct err ignored;
    /* A child of fork has the parent's open file, and no slot of its own. */
    if (c->slot < 0 || c->pid != (int64_t)getpid())
        return err_set(e, ST_INTERNAL, "card %s is not this process's", c->spec.name);
    enum status st = lock_table(c, bytes > 0 ? e : &ignored);
    if (bytes > 0) {
        if (st == ST_OK)
            st = take(c, bytes, e);
    } else if (st != ST_OK || write_slot(c, c->held_bytes + bytes, &ignored) != ST_OK) {
        c->held_bytes += bytes;
        c->behind = true;
    }
    if (st == ST_OK || c->slot >= 0)
        shared_unlock(&c->file, LOCK_TABLE);
    return bytes > 0 ? st : ST_OK;
}

enum status sim_card_charge(struct sim_card *c, int64_t bytes, struct err *e)
{
    (void)pthread_mutex_lock(&c->mutex);
    ASSERT(bytes >= 0 || -bytes <= c->held_bytes || c->slot < 0);
    enum status st = charge(c, bytes, e);
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}

/* ---- looking ---- */

static void fill_state(const struct sim_card *c, int64_t left, struct sim_state *out)
{
    out->capacity_bytes = c->table.header.capacity_bytes;
    out->others_bytes = c->others_bytes;
    out->free_bytes = left;
    for (int i = 0; i < SIM_SLOTS; i++) {
        const struct slot *s = &c->table.slot[i];
        if (s->pid == 0)
            continue;
        out->use[out->n++] =
            (struct sim_use){s->pid, s->context_bytes, s->held_bytes, i == c->slot};
    }
}

static enum status look(struct sim_card *c, struct sim_state *out, struct err *e)
{
    bool attached = c->slot >= 0;
    int64_t left = 0;
    enum status st = attached ? lock_table(c, e) : open_locked(c, false, e);
    if (st == ST_NOT_FOUND) { /* nobody has been on the card */
        out->free_bytes = c->spec.capacity_bytes - c->spec.others_bytes;
        return ST_OK;
    }
    TRY(st);
    st = attached && shared_gone(&c->file) ? deleted(c, e) : read_table(c, e);
    if (st == ST_OK)
        st = count_free(c, &left, e);
    if (st == ST_OK)
        fill_state(c, left, out);
    if (attached)
        shared_unlock(&c->file, LOCK_TABLE);
    else
        shared_close(&c->file);
    return st;
}

enum status sim_card_look(struct sim_card *c, struct sim_state *out, struct err *e)
{
    *out = (struct sim_state){
        .capacity_bytes = c->spec.capacity_bytes, .others_bytes = c->spec.others_bytes};
    (void)pthread_mutex_lock(&c->mutex);
    enum status st = look(c, out, e);
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}
