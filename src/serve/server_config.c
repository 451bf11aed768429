/* server_config.c: the defaults of `weir serve`. Called by the command line and by tests. */
#include "serve/server.h"

struct serve_config serve_config_default(void) {
    return (struct serve_config){
        .engine = weir_options_default(),
        .host = "127.0.0.1",
        .port = 8000,
        .header_seconds = 30,
        .body_seconds = 60,
        .idle_seconds = 300,
        .stall_seconds = 300,
        .drain_seconds = 30,
        .stuck_seconds = 600,
        .max_body_bytes = (size_t)64 << 20,
        .max_buffered_bytes = (size_t)1 << 30,
        .max_connections = 16384,
        .workers = 2,
        .max_waiting_bodies = 1024,
        .access_log = true,
        .max_n = 128,
        .turn_replay_bytes = (size_t)64 << 20,
    };
}
