/* admin.h: the endpoints about the server itself: health, models, metrics, administration. Called
 * by server.c; all of it on the loop thread. */
#ifndef WEIR_SERVE_ADMIN_H
#define WEIR_SERVE_ADMIN_H

#include "serve/server.h"

/* Adds the routes; those that need the engine are answered with 503 until server_engine is there.
 */
void admin_routes(struct server *s, struct http *h);

#endif
