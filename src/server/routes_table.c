/* routes_table.c - the table of routes as data. */
#include "server/routes.h"

const struct route routes[] = {
#define ROUTE(method, path, handler, access, body, about)                                          \
    {METHOD_##method, path, handler, ACCESS_##access, BODY_##body, about},
#include "server/routes.def"
#undef ROUTE
};
const size_t route_count = sizeof routes / sizeof *routes;
