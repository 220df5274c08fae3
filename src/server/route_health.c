/* route_health.c - GET /api/health: what this server is, and whether it is well. */
#include "server/routes.h"
#include "server/server.h"

void route_health(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    json_t *o = json_object();
    json_put_str(o, "status", "ok");
    json_put_str(o, "boot_id", s->boot_id);
    http_json(r, 200, o);
}
