/* server_inside.h: one running server. Shared by server.c and admin.c. */
#ifndef WEIR_SERVE_SERVER_INSIDE_H
#define WEIR_SERVE_SERVER_INSIDE_H

#include "serve/http_server.h"

#include <pthread.h>
#include <stdatomic.h>

enum { DEFAULT_MAX_QUEUE = 4096 }; /* what the engine makes of max_queue 0 */

struct server {
    const struct serve_config *config;
    const struct serve_api *api; /* NULL: admin endpoints only */
    struct http *http;
    struct metrics *metrics;
    struct turns *turns; /* NULL: none are kept */
    weir_engine *engine; /* NULL while loading */
    void *api_state;
    weir_info info;
    int64_t created;
    char *own_name; /* from the directory */
    const char *const *names;
    size_t n_names;

    /* The loading thread's result; the loop looks after `loaded` is set. */
    pthread_t loader;
    bool loader_runs;
    atomic_bool loaded;
    weir_status load_status;
    weir_error load_error;
    weir_engine *loaded_engine;

    double work_since; /* since when the engine has had work without a break; 0: it has none */
};

/* Why the server is not well, NULL when it is. */
const char *server_fault(struct server *s);
/* A request's id from the id that its answer showed: chatcmpl-ID, cmpl-ID or ID itself. */
const char *server_bare_id(const char *id);

#endif
