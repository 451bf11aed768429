/* curl_api.h: the functions of libcurl that the replay client uses, found at run time: a server
 * needs no HTTP client, and a portable build does not carry one. */
#ifndef WEIR_BENCH_CURL_API_H
#define WEIR_BENCH_CURL_API_H

#include "base/error.h"

#include <curl/curl.h>

/* The type-checking macros of the header stand in front of the pointers of the same names. */
#undef curl_easy_setopt
#undef curl_easy_getinfo
#undef curl_multi_setopt

#define CURL_API_FUNCTIONS(F)                                                                      \
    F(global_init)                                                                                 \
    F(version_info)                                                                                \
    F(slist_append)                                                                                \
    F(slist_free_all)                                                                              \
    F(easy_init)                                                                                   \
    F(easy_cleanup)                                                                                \
    F(easy_reset)                                                                                  \
    F(easy_setopt)                                                                                 \
    F(easy_getinfo)                                                                                \
    F(easy_strerror)                                                                               \
    F(multi_init)                                                                                  \
    F(multi_cleanup)                                                                               \
    F(multi_setopt)                                                                                \
    F(multi_assign)                                                                                \
    F(multi_add_handle)                                                                            \
    F(multi_remove_handle)                                                                         \
    F(multi_socket_action)                                                                         \
    F(multi_info_read)                                                                             \
    F(multi_strerror)

struct curl_api {
#define CURL_API_MEMBER(NAME) __typeof__(curl_##NAME) *NAME;
    CURL_API_FUNCTIONS(CURL_API_MEMBER)
#undef CURL_API_MEMBER
};

/* Loads libcurl.so.4 (or the file that WEIR_LIBCURL names) once; later calls return the same table.
 * Not for several threads at once. WEIR_UNSUPPORTED says which package is missing, or which version
 * is too old: 7.80 is the first that tells when a request is about to be sent. */
weir_status curl_api_load(const struct curl_api **out, weir_error *err);

#endif
