/* plural.h: a counted thing in sentences for people: "1 call", "2 calls". */
#ifndef WEIR_BASE_PLURAL_H
#define WEIR_BASE_PLURAL_H

#include <stdint.h>

/* plural(n, "call", "calls"), and likewise of verbs: plural(n, "was", "were"). */
static inline const char *plural(uint64_t n, const char *one, const char *many) {
    return n == 1 ? one : many;
}

#endif
