/* curl_api.c: finds libcurl and its functions with dlopen. Called by the replay client. */
#include "bench/curl_api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum { LEAST_VERSION = 0x075000 };

static weir_status load(struct curl_api *api, weir_error *err) {
    const char *file = getenv("WEIR_LIBCURL");
    if (!file || !*file)
        file = "libcurl.so.4";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return weir_fail(err, WEIR_UNSUPPORTED, file,
                         "the HTTP client needs this library; Debian's package is libcurl4 "
                         "(libcurl4t64 from Debian 13 on): %s",
                         dlerror());
#define FIND(NAME)                                                                                 \
    if (!(*(void **)&api->NAME = dlsym(library, "curl_" #NAME)))                                   \
        return weir_fail(err, WEIR_UNSUPPORTED, file, "has no function curl_" #NAME);
    CURL_API_FUNCTIONS(FIND)
#undef FIND
    const curl_version_info_data *version = api->version_info(CURLVERSION_NOW);
    if (version->version_num < LEAST_VERSION)
        return weir_fail(err, WEIR_UNSUPPORTED, file, "version 7.80 or later is needed, this is %s",
                         version->version);
    if (api->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return weir_fail(err, WEIR_UNSUPPORTED, file, "does not start");
    return WEIR_OK;
}

weir_status curl_api_load(const struct curl_api **out, weir_error *err) {
    static struct curl_api api;
    static bool is_loaded;
    weir_status s = is_loaded ? WEIR_OK : load(&api, err);
    is_loaded = s == WEIR_OK;
    *out = is_loaded ? &api : NULL;
    return s;
}
