/* message.c - the wordings, and reading the numbers of one from squeezed text. */
#include "doctor/message.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct message_info infos[] = {
#define MESSAGE(id, anchor, reader, where, strength, about)                                        \
    {#id, anchor, about, WHERE_##where, strength},
#include "doctor/messages.def"
#undef MESSAGE
};

const struct message_info *message_info_of(enum message_id id)
{
    return &infos[id];
}

/* ---- a place in the text ---- */

struct cursor {
    const char *text;  /* all of it */
    const char *start; /* behind the anchor */
    const char *p;
    bool more; /* the text ended where something was expected */
};

/* Whether `want` is next; moves behind it. */
static bool lit(struct cursor *c, const char *want)
{
    size_t n = 0;
    while (want[n] && c->p[n] == want[n])
        n++;
    if (!want[n]) {
        c->p += n;
        return true;
    }
    if (!c->p[n])
        c->more = true;
    return false;
}

static bool lit_any(struct cursor *c, const char *a, const char *b)
{
    return lit(c, a) || lit(c, b);
}

static bool size(struct cursor *c, struct amount *out)
{
    struct amount a = amount_unknown;
    enum amount_end end = amount_read(&c->p, 0, &a);
    if (end == AMOUNT_SHORT || (end == AMOUNT_NONE && !*c->p))
        c->more = true;
    if (end == AMOUNT_WHOLE)
        *out = a;
    return end == AMOUNT_WHOLE;
}

/* The same, where the figure may be one that cannot be: that is counted, and stepped over. */
static bool sane_size(struct cursor *c, struct amount *out, struct message *m)
{
    const char *before = c->p;
    bool read = size(c, out);
    if (read && !amount_known(*out)) {
        m->distrusted++;
        return false;
    }
    if (!read && isdigit((unsigned char)*before) && !c->more)
        m->distrusted++;
    return read;
}

static int64_t integer(struct cursor *c)
{
    if (!isdigit((unsigned char)*c->p)) {
        if (!*c->p)
            c->more = true;
        return -1;
    }
    char *end;
    long long v = strtoll(c->p, &end, 10);
    c->p = end;
    if (!*c->p)
        c->more = true;
    return v;
}

/* Moves behind the next `word` that is at most `reach` characters away. */
static bool seek(struct cursor *c, const char *word, size_t reach)
{
    const char *found = strstr(c->p, word);
    if (found && (size_t)(found - c->p) <= reach) {
        c->p = found + strlen(word);
        return true;
    }
    if (strlen(c->p) < reach)
        c->more = true;
    return false;
}

/* ---- PyTorch's allocator ---- */

static const char *const backends[] = {"cuda", "hip", "xpu", "npu", "mlu", "musa", "hpu"};

/* The word before the anchor. */
static void backend_before(const struct cursor *c, size_t anchor, struct message *m)
{
    const char *end = c->start - anchor;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        size_t n = strlen(backends[i]);
        if ((size_t)(end - c->text) >= n && strncmp(end - n, backends[i], n) == 0)
            (void)snprintf(m->backend, sizeof m->backend, "%s", backends[i]);
    }
}

static void device_number(struct cursor *c, struct message *m)
{
    int64_t n = integer(c);
    m->device = n >= 0 && n < 4096 ? (int)n : -1;
}

/* "gpu0", "npu6"; 2.3 printed the number as a character, which is gone. */
static bool device(struct cursor *c, struct message *m)
{
    if (!lit(c, "gpu") && !lit(c, "npu") && !lit(c, "xpu") && !lit(c, "mlu") && !lit(c, "device"))
        return false;
    if (isdigit((unsigned char)*c->p))
        device_number(c, m);
    return true;
}

/* Whether the field that is next ends in "in total by PyTorch". */
static bool of_total(const struct cursor *c)
{
    const char *at = strstr(c->p, "intotalbypytorch");
    return at && at - c->p < 16 && !memchr(c->p, ';', (size_t)(at - c->p));
}

/* "; 4.04 GiB already allocated" and the like until the bracket closes. */
static void old_fields(struct cursor *c, struct message *m)
{
    struct amount cached = amount_unknown, a;
    while (lit_any(c, ";", ",")) {
        if (!size(c, &a)) {
            c->p += strcspn(c->p, ";)"); /* a field that this table does not know */
            continue;
        }
        if (lit(c, "totalcapacity"))
            m->total = a;
        else if (lit(c, "alreadyallocated"))
            m->allocated = a;
        else if (lit(c, "free"))
            m->free = a;
        else if (lit(c, "allowed"))
            m->allowed = a;
        else if (lit(c, "reserved"))
            m->reserved = a, m->era = ERA_RESERVED;
        else if (lit(c, "cached"))
            cached = a, m->era = ERA_CACHED;
        else if (of_total(c)) /* typed by hand */
            m->reserved = a, m->era = ERA_RESERVED;
        c->p += strcspn(c->p, ";)");
        if (!*c->p)
            c->more = true;
    }
    if (m->era == ERA_CACHED)
        m->reserved = amount_add(m->allocated, cached);
    if (amount_known(m->reserved))
        m->unallocated = amount_sub(m->reserved, m->allocated);
    m->truncated = !lit(c, ")");
    if (lit(c, "ifreservedmemoryis"))
        m->hint_split = true;
}

static void processes(struct cursor *c, struct message *m)
{
    while (lit(c, "process")) {
        struct message_process p = {integer(c), amount_unknown};
        if (!lit(c, "has"))
            return;
        if (sane_size(c, &p.used, m) && m->n_processes < MESSAGE_PROCESSES)
            m->process[m->n_processes++] = p;
        if (!lit(c, "memoryinuse.") && !lit(c, "memoryinuse"))
            return;
    }
}

static void own_use(struct cursor *c, struct message *m)
{
    if (!lit(c, "includingnon-pytorchmemory,thisprocesshas") && !lit(c, "thisprocesshas"))
        return;
    if (sane_size(c, &m->own, m) && m->own.bytes == 0) {
        m->own = amount_unknown;
        m->distrusted++;
    }
    (void)(lit(c, "memoryinuse.") || lit(c, "memoryinuse"));
}

static void new_split(struct cursor *c, struct message *m)
{
    if (!lit(c, "oftheallocatedmemory") || !size(c, &m->allocated))
        return;
    (void)lit(c, "isallocatedbypytorch");
    (void)lit(c, ",");
    if (lit(c, "with") && size(c, &m->private_pools)) {
        (void)(lit(c, "allocatedinprivatepools"));
        (void)lit(c, "(e.g.,cudagraphs)");
        (void)lit(c, ",");
    }
    (void)lit(c, "and");
    if (!size(c, &m->unallocated))
        return;
    m->truncated = false;
    m->reserved = amount_add(m->allocated, m->unallocated);
    if (!lit(c, "isreservedbypytorchbutunallocated"))
        return;
    (void)lit(c, ".");
    if (lit(c, "ifreservedbutunallocatedmemoryislargetrysetting")) {
        m->hint_split = strncmp(c->p, "max_split_size_mb", 17) == 0;
        m->hint_expandable = !m->hint_split && (lit(c, "pytorch_cuda_alloc_conf=expandable") ||
                                                lit(c, "pytorch_alloc_conf=expandable") ||
                                                lit(c, "pytorch_hip_alloc_conf=expandable"));
    }
    c->more = false; /* the last figure is there */
}

static void new_fields(struct cursor *c, struct message *m)
{
    m->era = ERA_NEW;
    m->truncated = true;
    if (!device(c, m))
        return;
    if (c->p[0] && c->p[0] != 'h')
        c->p++; /* the number as a character */
    if (!lit(c, "hasatotalcapac"))
        return;
    (void)lit(c, "i");
    if (!lit(c, "tyof") || !size(c, &m->total))
        return;
    if (lit(c, "ofwhich") && size(c, &m->free)) {
        (void)lit(c, "isfree");
    }
    (void)lit(c, ".");
    processes(c, m);
    own_use(c, m);
    processes(c, m);
    struct amount allowed = amount_unknown;
    const char *before = c->p;
    if (size(c, &allowed) && lit(c, "allowed")) {
        m->allowed = allowed;
        (void)(lit(c, ";") || lit(c, "."));
    } else {
        c->p = before;
    }
    new_split(c, m);
}

static void read_torch(struct cursor *c, struct message *m)
{
    backend_before(c, strlen("outofmemory.triedtoallocate"), m);
    m->truncated = true;
    (void)sane_size(c, &m->request, m); /* 2^56 and more: what it was is lost, that it was is not */
    if (lit(c, "(")) {
        m->era = ERA_RESERVED;
        if (device(c, m))
            old_fields(c, m);
        return;
    }
    if (lit(c, ".")) {
        if (strncmp(c->p, "gpu", 3) == 0 || strncmp(c->p, "npu", 3) == 0 || !c->p[0] ||
            strncmp(c->p, "xpu", 3) == 0 || strncmp(c->p, "device", 6) == 0 || !c->p[1])
            new_fields(c, m);
    }
}

/* "Tried to allocate R (GPU 0; ...)" or "... R. GPU 0 has a total capacity": where what is before
 * it was left out; without a card's figures it may be anything. */
static void read_torch_cut(struct cursor *c, struct message *m)
{
    read_torch(c, m);
    bool figures = amount_known(m->total) || amount_known(m->free) || amount_known(m->allocated);
    m->id = figures ? MESSAGE_TORCH : c->more ? m->id : MESSAGE_COUNT;
}

static void read_mps(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "mps");
    m->truncated = true;
    if (!lit(c, "(mpsallocated:") || !size(c, &m->allocated))
        return;
    if (lit(c, ",otherallocations:"))
        (void)size(c, &m->other_own);
    if (lit(c, ",maxallowed:"))
        (void)size(c, &m->allowed);
    (void)lit(c, ")");
    (void)lit(c, ".");
    if (lit(c, "triedtoallocate") && size(c, &m->request)) {
        m->truncated = false;
        c->more = false;
    }
}

/* cudaMallocAsync: "Allocation on device 0 would exceed allowed memory. (out of memory) Currently
 * allocated : 10.50 GiB Requested : 20.00 MiB Device limit : 12.00 GiB Free (according to CUDA): 0
 * bytes PyTorch limit (set by user-supplied memory fraction) : 17179869184.00 GiB". */
static void read_async(struct cursor *c, struct message *m)
{
    const char *before = c->start - strlen(message_info_of(m->id)->anchor);
    (void)snprintf(m->backend, sizeof m->backend, "cuda");
    m->era = ERA_NEW;
    m->truncated = true;
    if (before > c->text && isdigit((unsigned char)before[-1]))
        m->device = before[-1] - '0';
    (void)lit(c, ".");
    (void)lit(c, "(outofmemory)");
    if (lit(c, "currentlyallocated:"))
        (void)size(c, &m->allocated);
    if (lit(c, "requested:"))
        (void)size(c, &m->request);
    if (lit(c, "devicelimit:"))
        (void)size(c, &m->total);
    if (lit(c, "free(accordingtocuda):"))
        (void)size(c, &m->free);
    if (lit(c, "pytorchlimit(setbyuser-suppliedmemoryfraction):") && sane_size(c, &m->allowed, m))
        m->truncated = false;
    m->reserved = m->allocated; /* the driver's pool is not told apart */
    m->unallocated = amount_sub(m->reserved, m->allocated);
}

/* ---- the others ---- */

static void read_plain(struct cursor *c, struct message *m)
{
    (void)c, (void)m;
}

static void read_warning(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "cuda");
    device_number(c, m);
    if (!lit(c, "whiletryingtoallocate") || !size(c, &m->request))
        return;
    (void)lit(c, ".");
    if (!lit(c, "(free:"))
        return;
    if (amount_read(&c->p, 1, &m->free) < AMOUNT_WHOLE)
        return;
    if (lit(c, ",total:"))
        (void)amount_read(&c->p, 1, &m->total);
    c->more = false;
}

/* Of a run of ours that ran out at an operator: "Original error: out of memory on device "cuda:0":
 * 6.1 MiB for "activations" need a segment of 20.0 MiB; live 31.0 MiB in 60 blocks, reserved 36.0
 * MiB in 3 segments, ...". The segment is what the device was asked for; finer than the line
 * before. */
static void read_node_original(struct cursor *c, struct message *m)
{
    c->more = false;
    if (!seek(c, "originalerror:outofmemoryondevice", 60) || !seek(c, "needasegmentof", 160) ||
        !size(c, &m->request))
        return;
    if (lit(c, ";live") && size(c, &m->allocated) && seek(c, ",reserved", 24))
        (void)size(c, &m->reserved);
}

/* "CUDA memory on cuda:0: 14.82 GiB held by live tensors, 15.44 GiB reserved by the caching
 * allocator, 15.61 GiB peak this process, 15.99 GiB on the card.": the first figure is before. */
static void read_node(struct cursor *c, struct message *m)
{
    const char *end = c->start - strlen(message_info_of(m->id)->anchor), *at = end;
    struct amount peak;
    while (at > c->text && at[-1] != ':' && end - at < 24)
        at--;
    struct cursor live = {c->text, c->start, at, false};
    (void)size(&live, &m->allocated);
    if (at - c->text > 6 && isdigit((unsigned char)at[-2])) {
        const char *digit = at - 2;
        while (digit > c->text && isdigit((unsigned char)digit[-1]))
            digit--;
        m->device = (int)strtol(digit, NULL, 10) & 0xFFFF;
    }
    if (lit(c, ",") && size(c, &m->reserved))
        (void)lit(c, "reservedbythecachingallocator,");
    if (size(c, &peak) && seek(c, ",", 24))
        (void)size(c, &m->total);
    m->era = ERA_NEW;
    if (amount_known(m->total))
        read_node_original(c, m);
}

/* "... Original error: the plan needs 4.0 MiB, and the budget of --memory-gib has 1.0 MiB", or
 * "..., and cuda:0 (Small) has 30.1 MiB". */
static void read_node_error(struct cursor *c, struct message *m)
{
    if (m->id == MESSAGE_NODE_CARD)
        device_number(c, m);
    if (!seek(c, "originalerror:theplanneeds", 7000) || !size(c, &m->request))
        return;
    if (seek(c, "budgetof--memory-gibhas", 60))
        (void)size(c, &m->allowed);
    else if (seek(c, ")has", 120))
        (void)size(c, &m->free);
    c->more = c->more && !amount_known(m->allowed) && !amount_known(m->free);
}

/* ".../THCStorage.cu:58", or the file of page-locked host memory. */
static void read_old(struct cursor *c, struct message *m)
{
    m->era = ERA_0;
    (void)snprintf(m->backend, sizeof m->backend, "cuda");
    struct cursor at = *c;
    if (seek(&at, "thccachinghostallocator", 120))
        m->id = MESSAGE_PINNED;
    at = *c;
    if (seek(&at, "thcgeneral.c", 140))
        m->id = MESSAGE_CONTEXT; /* where 0.x made the context */
}

static void read_check(struct cursor *c, struct message *m)
{
    struct cursor at = *c;
    m->era = ERA_0;
    if (seek(&at, "thccachinghostallocator", 100))
        m->id = MESSAGE_PINNED;
    at = *c;
    if (seek(&at, "thcgeneral.c", 140))
        m->id = MESSAGE_CONTEXT;
    if (!seek(c, "outofmemory", 220))
        m->id = MESSAGE_COUNT; /* another error of the same check */
}

static void read_nvml(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "cuda");
    if (!seek(c, "internalassert", 8))
        m->id = MESSAGE_COUNT;
}

/* A frame of the C++ trace names the allocator even when all is well elsewhere. */
static void read_pinned(struct cursor *c, struct message *m)
{
    if (!seek(c, "outofmemory", 200))
        m->id = MESSAGE_COUNT;
}

static void read_cpu(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "cpu");
    (void)size(c, &m->request);
}

/* "unable to mmap 16060617592 bytes from file <...>: Cannot allocate memory (12)" */
static void read_mmap(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "cpu");
    (void)size(c, &m->request);
    if (!seek(c, "cannotallocatememory", 600) && !c->more)
        m->id = MESSAGE_COUNT;
}

static void read_numpy(struct cursor *c, struct message *m)
{
    (void)snprintf(m->backend, sizeof m->backend, "cpu");
    if (!size(c, &m->request) || !lit(c, "foranarray"))
        if (!c->more)
            m->id = MESSAGE_COUNT;
}

/* "Out of memory: Killed process 4242 (python3) total-vm:..kB, anon-rss:..kB". */
static void read_killer(struct cursor *c, struct message *m)
{
    const char *before = c->start - strlen(message_info_of(m->id)->anchor);
    size_t n = (size_t)(before - c->text);
    bool ours = n >= 12 && (strncmp(before - 12, "outofmemory:", 12) == 0);
    if (!ours && !(strstr(c->p, "anon-rss:") && strstr(c->p, "anon-rss:") - c->p < 120)) {
        m->id = MESSAGE_COUNT;
        return;
    }
    if (seek(c, "anon-rss:", 120))
        (void)size(c, &m->allocated);
    c->more = false;
}

static void read_shm(struct cursor *c, struct message *m)
{
    const char *from = c->text, *shm = strstr(from, "shm");
    (void)c;
    if (!shm && !strstr(from, "shared"))
        m->id = MESSAGE_COUNT;
}

/* "2.12G (2282521344 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY", and XLA's "request for 6.27GiB
 * (6727663616B) on device ordinal 0" */
static void read_tensorflow(struct cursor *c, struct message *m)
{
    struct amount rounded = amount_unknown;
    (void)lit(c, "requestfor");
    bool first = size(c, &rounded);
    if (first && lit(c, "(")) {
        (void)size(c, &m->request);
        (void)lit(c, ")");
    }
    if (first && !amount_known(m->request))
        m->request = rounded;
    if (!first || (!lit(c, "fromdevice") && !lit(c, "ondeviceordinal")))
        if (!c->more)
            m->id = MESSAGE_COUNT;
}

static void read_tf_shape(struct cursor *c, struct message *m)
{
    double elements = 1;
    if (!lit(c, "["))
        return;
    while (isdigit((unsigned char)*c->p)) {
        elements *= (double)integer(c);
        if (!lit(c, ","))
            break;
    }
    if (!lit(c, "]andtype"))
        return;
    double width = lit(c, "float16") || lit(c, "half") || lit(c, "bfloat16") ? 2
                   : lit(c, "double") || lit(c, "int64")                     ? 8
                                                                             : 4;
    if (elements * width < 9e17)
        m->request = amount_exact((int64_t)(elements * width));
    c->more = false;
}

static void read_size_next(struct cursor *c, struct message *m)
{
    if (amount_read(&c->p, 1, &m->request) == AMOUNT_SHORT)
        c->more = true;
}

/* "1,024 bytes (allocated so far: 512 bytes, limit set to: 4096 bytes)" */
static void read_cupy(struct cursor *c, struct message *m)
{
    if (!size(c, &m->request))
        return;
    if (lit(c, "(allocatedsofar:"))
        (void)size(c, &m->allocated);
    if (lit(c, ",limitsetto:") || lit(c, ",limit:"))
        (void)size(c, &m->allowed);
    c->more = false;
}

/* "0. Cannot allocate 1.0GB memory on GPU 0, 10.9GB memory has been allocated and available memory
 * is only 500MB." */
static void read_paddle(struct cursor *c, struct message *m)
{
    device_number(c, m);
    if (seek(c, "cannotallocate", 4))
        (void)size(c, &m->request);
    if (seek(c, "memoryongpu", 4)) {
        (void)integer(c);
        (void)lit(c, ",");
        if (size(c, &m->own))
            (void)lit(c, "memoryhasbeenallocated");
    }
    if (seek(c, "availablememoryisonly", 8))
        (void)size(c, &m->free);
    c->more = false;
}

/* "allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory": the size is before. */
static void read_llama(struct cursor *c, struct message *m)
{
    const char *before = c->start - strlen(message_info_of(m->id)->anchor);
    const char *from = before - c->text > 60 ? before - 60 : c->text, *at = NULL;
    for (const char *p = strstr(from, "allocating"); p && p < before;
         p = strstr(p + 1, "allocating"))
        at = p + strlen("allocating");
    if (!at)
        return;
    struct cursor size_at = {c->text, c->start, at, false};
    if (size(&size_at, &m->request) && lit(&size_at, "ondevice"))
        device_number(&size_at, m);
}

/* "Free memory on device (5.12/23.65 GiB) on startup is less than desired GPU memory utilization
 * (0.9, 21.28 GiB)": two of the figures are before the anchor. */
static void read_vllm_start(struct cursor *c, struct message *m)
{
    const char *before = c->start - strlen(message_info_of(m->id)->anchor);
    const char *from = before - c->text > 160 ? before - 160 : c->text, *at = NULL;
    for (const char *p = strstr(from, "freememoryondevice"); p && p < before;
         p = strstr(p + 1, "freememoryondevice"))
        at = p;
    if (at && (at = strchr(at, '(')) && at < before) {
        double unit = 1073741824.0;
        char *end;
        double f = strtod(at + 1, &end);
        if (end[0] == 'g')
            end += strspn(end, "gib");
        if (*end == '/' && f >= 0 && f < 1e6) {
            m->free = amount_exact((int64_t)(f * unit));
            double t = strtod(end + 1, &end);
            if (t > 0 && t < 1e6)
                m->total = amount_exact((int64_t)(t * unit));
        }
    }
    if (lit(c, "(") && seek(c, ",", 8))
        (void)size(c, &m->request);
    c->more = false;
}

/* ---- the one door ---- */

typedef void reader(struct cursor *c, struct message *m);
static reader *const readers[] = {
#define MESSAGE(id, anchor, reader, where, strength, about) read_##reader,
#include "doctor/messages.def"
#undef MESSAGE
};

enum message_state
message_read(enum message_id id, const char *text, size_t at, struct message *out, size_t *used)
{
    struct cursor c = {text, text + at, text + at, false};
    *out = (struct message){
        .id = id,
        .device = -1,
        .request = amount_unknown,
        .total = amount_unknown,
        .free = amount_unknown,
        .allowed = amount_unknown,
        .allocated = amount_unknown,
        .private_pools = amount_unknown,
        .unallocated = amount_unknown,
        .reserved = amount_unknown,
        .own = amount_unknown,
        .other_own = amount_unknown};
    readers[id](&c, out);
    *used = (size_t)(c.p - text);
    return c.more ? MESSAGE_MORE : MESSAGE_DONE;
}
