/* event.c - telling the listener. */
#include "mem/pool/pool_int.h"

const char *mem_event_name(enum mem_event_kind k)
{
    switch (k) {
    case MEM_EVENT_ALLOC:
        return "alloc";
    case MEM_EVENT_FREE_REQUESTED:
        return "free_requested";
    case MEM_EVENT_FREE_COMPLETED:
        return "free_completed";
    case MEM_EVENT_SEGMENT_ALLOC:
        return "segment_alloc";
    case MEM_EVENT_SEGMENT_FREE:
        return "segment_free";
    case MEM_EVENT_SEGMENT_MAP:
        return "segment_map";
    case MEM_EVENT_SEGMENT_UNMAP:
        return "segment_unmap";
    case MEM_EVENT_SNAPSHOT:
        return "snapshot";
    case MEM_EVENT_OOM:
        return "oom";
    case MEM_EVENT_N:
        break;
    }
    return "";
}

void tell(
    struct mem_pool *p, enum mem_event_kind kind, const struct mem_block *b, int64_t size_bytes,
    const struct mem_tag *tag)
{
    struct mem_event event = {
        .kind = kind,
        .addr = b->addr,
        .size_bytes = size_bytes,
        .stream = b->set->stream,
        .pool = block_pool_id(b->set->pool)};
    if (tag)
        event.tag = *tag;
    p->listen(p->listen_ctx, &event);
}
