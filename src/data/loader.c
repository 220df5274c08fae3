/* loader.c - batches in the order of an epoch, made in place or ahead by worker threads.
 *
 * STATES of a ring slot, batch b living in slot b % slots: empty -> filling (a worker took b) ->
 * ready -> empty (loader_next copied it out). All under one lock.
 * INVARIANTS
 *   1. given <= taken <= given + slots, and taken <= plan.batches: workers never overrun the ring.
 *   2. While `filling` > 0 the order of the epoch does not change: loader_begin_epoch waits.
 *   3. A batch's bytes depend on (seed, stream, epoch, batch) alone.
 */
#include "data/loader.h"

#include "base/mem.h"
#include "data/sampler.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { WORKERS_MAX = 256, PREFETCH_MAX = 1024, WORKER_STACK_BYTES = 512 * 1024 };

struct slot {
    char *x, *y;
    bool ready;
    enum status st;
    struct err err;
};

struct worker {
    struct loader *l;
    pthread_t thread;
    struct scratch scratch;
    size_t scratch_bytes; /* of it, as of the last batch; under the lock */
};

struct loader {
    const struct dataset *d;
    struct loader_options o;
    struct loader_plan plan;
    struct transform t;
    struct pipeline *pipeline; /* NULL: numbers */
    uint32_t *order;           /* NULL: sequential */
    int64_t epoch;
    int64_t given; /* batches that loader_next has given, or passed over */
    struct scratch scratch;
    char *ring;
    /* workers */
    int threads, slots;
    struct worker *worker;
    struct slot *slot;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int64_t taken;
    int filling;
    bool stop;
    atomic_bool abandon; /* what is being filled will be dropped */
};

int64_t loader_batches(int64_t count, int64_t batch_size, bool drop_last)
{
    return count / batch_size + (!drop_last && count % batch_size != 0);
}

static int64_t slots_of(const struct loader_options *o)
{
    return o->num_workers * (o->prefetch_factor ? o->prefetch_factor : 2);
}

static enum status check_options(const struct loader_options *o, struct err *e)
{
    if (o->batch_size < 1)
        return err_set(
            e, ST_INVALID, "\"batch_size\" is %lld, less than 1", (long long)o->batch_size);
    if (o->num_workers < 0 || o->num_workers > WORKERS_MAX)
        return err_set(
            e, ST_INVALID, "\"num_workers\" is %lld, outside 0 to %d", (long long)o->num_workers,
            WORKERS_MAX);
    if (o->prefetch_factor < 0 || o->prefetch_factor > PREFETCH_MAX)
        return err_set(
            e, ST_INVALID, "\"prefetch_factor\" is %lld, outside 1 to %d",
            (long long)o->prefetch_factor, PREFETCH_MAX);
    return ST_OK;
}

static enum status describe_sample(
    const struct dataset_info *info, const struct transform *t, struct loader_plan *p,
    struct err *e)
{
    p->target = info->target;
    p->target_rank = info->target_rank;
    memcpy(p->target_shape, info->target_shape, sizeof p->target_shape);
    p->y_bytes = dataset_target_bytes(info);
    p->rank = info->rank;
    p->type = info->type;
    memcpy(p->shape, info->shape, sizeof p->shape);
    if (info->type == DATA_U8) {
        struct transform fallback = transform_default();
        TRY(transform_shape(t ? t : &fallback, info->shape, p->shape, NULL, e));
        p->type = DATA_F32;
    } else if (t && t->n) {
        return err_set(
            e, ST_INVALID, "data set \"%s\" is numbers, not images: a transform cannot be applied",
            info->name);
    }
    p->x_bytes = data_type_bytes(p->type);
    for (int i = 0; i < p->rank; i++)
        p->x_bytes = size_mul(p->x_bytes, (size_t)p->shape[i]);
    return ST_OK;
}

/* Bytes of one ring slot, samples then targets. */
static size_t slot_bytes(const struct loader_plan *p, int64_t batch_size)
{
    return size_mul(p->x_bytes + p->y_bytes, (size_t)batch_size);
}

static int64_t scratches_of(const struct loader_options *o)
{
    return o->num_workers ? o->num_workers : 1;
}

enum status loader_describe(
    const struct dataset_info *info, const struct transform *t, const struct loader_options *o,
    struct loader_plan *out, struct err *e)
{
    struct loader_plan p = {0};
    struct transform fallback = transform_default();
    TRY(check_options(o, e));
    TRY(describe_sample(info, t, &p, e));
    if (info->count > UINT32_MAX)
        return err_set(e, ST_UNSUPPORTED, "data set \"%s\" has more than 2^32 samples", info->name);
    p.batches = loader_batches(info->count, o->batch_size, o->drop_last);
    int64_t rest = info->count % o->batch_size;
    p.last_count = p.batches == 0 ? 0 : rest && !o->drop_last ? rest : o->batch_size;
    size_t ring = size_mul(slot_bytes(&p, o->batch_size), (size_t)slots_of(o));
    if (ring > INT64_MAX / 4)
        return err_set(e, ST_OOM, "prefetched batches would need more than 2^62 bytes");
    p.host_bytes = (int64_t)ring + (o->shuffle ? info->count * (int64_t)sizeof(uint32_t) : 0);
    if (info->type == DATA_U8)
        p.host_bytes +=
            scratches_of(o) * scratch_predict(t ? t : &fallback, info->shape, info->shape_varies);
    *out = p;
    return ST_OK;
}

/* Making a batch */

static uint32_t sample_at(const struct loader *l, int64_t position)
{
    return l->order ? l->order[position] : (uint32_t)position;
}

static int64_t batch_count(const struct loader *l, int64_t batch)
{
    int64_t first = batch * l->o.batch_size, count = dataset_get_info(l->d)->count;
    return count - first < l->o.batch_size ? count - first : l->o.batch_size;
}

int64_t loader_indices(const struct loader *l, int64_t batch, int64_t *out)
{
    int64_t n = batch_count(l, batch);
    for (int64_t i = 0; i < n; i++)
        out[i] = sample_at(l, batch * l->o.batch_size + i);
    return n;
}

static enum status
check_shape(const struct loader *l, int64_t index, const int64_t shape[3], struct err *e)
{
    const int64_t *want = l->plan.shape;
    if (shape[0] == want[0] && shape[1] == want[1] && shape[2] == want[2])
        return ST_OK;
    char name[2048];
    err_set(
        e, ST_INVALID,
        "\"%s\" gives a sample of %lld,%lld,%lld where the others are %lld,%lld,%lld",
        dataset_sample_name(l->d, index, name, sizeof name), (long long)shape[0],
        (long long)shape[1], (long long)shape[2], (long long)want[0], (long long)want[1],
        (long long)want[2]);
    err_hint(e, "Images of different sizes need a ResizeTransform.");
    return ST_INVALID;
}

/* The image to transform: borrowed from the data set, or decoded into the scratch memory. */
static enum status find_image(
    const struct loader *l, int64_t index, struct scratch *s, struct image *borrowed,
    const struct image **out, struct err *e)
{
    const uint8_t *px = dataset_pixels(l->d, index);
    if (!px) {
        *out = &s->image[0];
        return dataset_image(l->d, index, &s->image[0], e);
    }
    const int64_t *shape = dataset_get_info(l->d)->shape;
    union {
        const uint8_t *in;
        uint8_t *out;
    } px_of = {.in = px}; /* pipeline_apply does not write to it */
    *borrowed =
        (struct image){.w = (int)shape[2], .h = (int)shape[1], .c = (int)shape[0], .px = px_of.out};
    *out = borrowed;
    return ST_OK;
}

static enum status
make_image(const struct loader *l, int64_t index, struct scratch *s, float *x, struct err *e)
{
    struct image borrowed;
    const struct image *im = NULL;
    int64_t shape[3] = {0};
    TRY(find_image(l, index, s, &borrowed, &im, e));
    struct rng r = sampler_rng(l->o.seed, l->o.stream, l->epoch, index);
    int64_t room = (int64_t)(l->plan.x_bytes / sizeof(float));
    enum status st = pipeline_apply(l->pipeline, im, &r, s, x, room, shape, e);
    /* Too large for its place is the same mistake as too small: the shapes differ. */
    if (shape[0])
        TRY(check_shape(l, index, shape, e));
    if (st == ST_OK)
        return ST_OK;
    char name[2048];
    if (e)
        err_prefix(e, "%s", dataset_sample_name(l->d, index, name, sizeof name));
    return st;
}

static enum status make_batch(
    const struct loader *l, int64_t batch, struct scratch *s, char *x, char *y, struct err *e)
{
    int64_t n = batch_count(l, batch), first = batch * l->o.batch_size;
    for (int64_t i = 0; i < n; i++) {
        int64_t index = sample_at(l, first + i);
        char *to = x + (size_t)i * l->plan.x_bytes;
        if (l->threads && atomic_load_explicit(&l->abandon, memory_order_relaxed))
            return ST_OK;
        if (l->pipeline) {
            union {
                char *bytes;
                float *floats;
            } at = {.bytes = to};
            TRY(make_image(l, index, s, at.floats, e));
        } else {
            dataset_write(l->d, index, to);
        }
        if (y)
            dataset_target(l->d, index, y + (size_t)i * l->plan.y_bytes);
    }
    return ST_OK;
}

/* Workers */

static bool may_take(const struct loader *l)
{
    return l->taken < l->plan.batches && l->taken < l->given + l->slots;
}

static void fill(struct worker *w, int64_t batch)
{
    struct loader *l = w->l;
    struct slot *s = &l->slot[batch % l->slots];
    enum status st = make_batch(l, batch, &w->scratch, s->x, s->y, &s->err);
    (void)pthread_mutex_lock(&l->lock);
    w->scratch_bytes = scratch_host_bytes(&w->scratch);
    s->st = st;
    s->ready = true;
    l->filling--;
    (void)pthread_cond_broadcast(&l->done);
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    struct loader *l = w->l;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (!may_take(l)) {
            (void)pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        int64_t batch = l->taken++;
        l->filling++;
        (void)pthread_mutex_unlock(&l->lock);
        fill(w, batch); /* comes back with the lock */
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

static enum status start_thread(struct worker *w, struct err *e)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    /* Signals are for the main thread: Ctrl-C must find it. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
    int r = pthread_create(&w->thread, &attributes, worker_main, w);
    (void)pthread_attr_destroy(&attributes);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r == 0 ? ST_OK : err_set(e, ST_IO, "could not start a loader thread: %s", strerror(r));
}

static void give_up_filling(struct loader *l)
{
    atomic_store(&l->abandon, true);
    (void)pthread_mutex_lock(&l->lock);
    l->taken = l->plan.batches; /* nothing more to take */
    while (l->filling)
        (void)pthread_cond_wait(&l->done, &l->lock);
    (void)pthread_mutex_unlock(&l->lock);
    atomic_store(&l->abandon, false);
}

static void stop_workers(struct loader *l)
{
    if (l->threads == 0)
        return;
    give_up_filling(l);
    (void)pthread_mutex_lock(&l->lock);
    l->stop = true;
    (void)pthread_cond_broadcast(&l->work);
    (void)pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++)
        (void)pthread_join(l->worker[i].thread, NULL);
    l->threads = 0;
}

static enum status make_ring(struct loader *l, struct err *e)
{
    size_t one = slot_bytes(&l->plan, l->o.batch_size);
    l->slots = (int)slots_of(&l->o);
    l->ring = mem_try_alloc(size_mul(one, (size_t)l->slots));
    if (!l->ring)
        return err_set(
            e, ST_OOM, "no host memory for %d prefetched batches of %zu bytes", l->slots, one);
    l->slot = mem_alloc((size_t)l->slots * sizeof *l->slot);
    for (int i = 0; i < l->slots; i++) {
        l->slot[i].x = l->ring + (size_t)i * one;
        l->slot[i].y =
            l->plan.y_bytes ? l->slot[i].x + l->plan.x_bytes * (size_t)l->o.batch_size : NULL;
    }
    return ST_OK;
}

static enum status reserve(struct loader *l, struct scratch *s, struct err *e)
{
    const struct dataset_info *info = dataset_get_info(l->d);
    return l->pipeline ? scratch_reserve(s, &l->t, info->shape, info->shape_varies, e) : ST_OK;
}

static enum status start_workers(struct loader *l, struct err *e)
{
    int n = (int)l->o.num_workers;
    TRY(make_ring(l, e));
    l->worker = mem_alloc((size_t)n * sizeof *l->worker);
    for (int i = 0; i < n; i++) {
        TRY(reserve(l, &l->worker[i].scratch, e));
        l->worker[i].scratch_bytes = scratch_host_bytes(&l->worker[i].scratch);
    }
    for (int i = 0; i < n; i++) {
        l->worker[i].l = l;
        TRY(start_thread(&l->worker[i], e));
        l->threads++;
    }
    return ST_OK;
}

static enum status prepare(struct loader *l, struct err *e)
{
    const struct dataset_info *info = dataset_get_info(l->d);
    if (info->type == DATA_U8)
        TRY(transform_compile(&l->t, (int)info->shape[0], &l->pipeline, e));
    if (l->o.shuffle && info->count) {
        l->order = mem_try_alloc((size_t)info->count * sizeof *l->order);
        if (!l->order)
            return err_set(
                e, ST_OOM, "no host memory for the order of %lld samples", (long long)info->count);
    }
    l->taken = l->given = l->plan.batches; /* no epoch yet */
    return l->o.num_workers ? start_workers(l, e) : reserve(l, &l->scratch, e);
}

enum status loader_new(
    const struct dataset *d, const struct transform *t, const struct loader_options *o,
    struct loader **out, struct err *e)
{
    struct loader_plan plan;
    TRY(loader_describe(dataset_get_info(d), t, o, &plan, e));
    struct loader *l = mem_alloc(sizeof *l);
    l->d = d;
    l->o = *o;
    l->plan = plan;
    l->t = t ? *t : transform_default();
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->work, NULL);
    (void)pthread_cond_init(&l->done, NULL);
    enum status st = prepare(l, e);
    if (st != ST_OK) {
        loader_free(l);
        return st;
    }
    *out = l;
    return ST_OK;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    stop_workers(l);
    for (int i = 0; l->worker && i < l->o.num_workers; i++)
        scratch_release(&l->worker[i].scratch);
    scratch_release(&l->scratch);
    (void)pthread_cond_destroy(&l->done);
    (void)pthread_cond_destroy(&l->work);
    (void)pthread_mutex_destroy(&l->lock);
    pipeline_free(l->pipeline);
    mem_free(l->worker);
    mem_free(l->slot);
    mem_free(l->ring);
    mem_free(l->order);
    mem_free(l);
}

const struct loader_plan *loader_get_plan(const struct loader *l)
{
    return &l->plan;
}

int64_t loader_position(const struct loader *l)
{
    return l->given;
}

int64_t loader_host_bytes(struct loader *l)
{
    size_t n = size_mul(slot_bytes(&l->plan, l->o.batch_size), (size_t)l->slots);
    n += l->order ? (size_t)dataset_get_info(l->d)->count * sizeof *l->order : 0;
    n += scratch_host_bytes(&l->scratch);
    (void)pthread_mutex_lock(&l->lock);
    for (int i = 0; i < l->threads; i++)
        n += l->worker[i].scratch_bytes;
    (void)pthread_mutex_unlock(&l->lock);
    return (int64_t)n;
}

enum status loader_begin_epoch(struct loader *l, int64_t epoch, int64_t first_batch, struct err *e)
{
    if (epoch < 0 || first_batch < 0 || first_batch > l->plan.batches)
        return err_set(
            e, ST_INVALID, "epoch %lld, batch %lld: the loader has %lld batches per epoch",
            (long long)epoch, (long long)first_batch, (long long)l->plan.batches);
    if (l->threads)
        give_up_filling(l);
    (void)pthread_mutex_lock(&l->lock);
    if (l->order)
        sampler_permute(
            l->order, (uint32_t)dataset_get_info(l->d)->count, l->o.seed, l->o.stream, epoch);
    l->epoch = epoch;
    l->given = l->taken = first_batch;
    for (int i = 0; i < l->slots; i++)
        l->slot[i].ready = false;
    (void)pthread_cond_broadcast(&l->work);
    (void)pthread_mutex_unlock(&l->lock);
    return ST_OK;
}

/* Waits for the slot of the next batch and copies it out; the slot is then free for another. */
static enum status take_ready(struct loader *l, int64_t n, char *x, char *y, struct err *e)
{
    struct slot *s = &l->slot[l->given % l->slots];
    (void)pthread_mutex_lock(&l->lock);
    while (!s->ready)
        (void)pthread_cond_wait(&l->done, &l->lock);
    (void)pthread_mutex_unlock(&l->lock);
    enum status st = s->st;
    if (st == ST_OK) {
        memcpy(x, s->x, (size_t)n * l->plan.x_bytes);
        if (y && s->y)
            memcpy(y, s->y, (size_t)n * l->plan.y_bytes);
    } else if (e) {
        *e = s->err;
    }
    (void)pthread_mutex_lock(&l->lock);
    s->ready = false;
    l->given++;
    (void)pthread_cond_signal(&l->work);
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

enum status loader_next(struct loader *l, void *x, void *y, int64_t *count, struct err *e)
{
    *count = 0;
    if (l->given >= l->plan.batches)
        return ST_OK;
    int64_t n = batch_count(l, l->given);
    if (l->threads) {
        TRY(take_ready(l, n, x, y, e));
    } else {
        TRY(make_batch(l, l->given++, &l->scratch, x, l->plan.y_bytes ? y : NULL, e));
    }
    *count = n;
    return ST_OK;
}
