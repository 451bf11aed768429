/* place.c: the decision of place.h, apart from any machine. Called by place_hwloc.c and tests. */
#include "machine/place.h"

void place_share(const uint32_t *cores, uint32_t nodes, uint32_t *node_of, uint32_t members) {
    uint64_t all = 0;
    for (uint32_t k = 0; k < nodes; k++)
        all += cores[k];
    for (uint32_t i = 0; i < members; i++) {
        /* The core in the middle of the member's share of all cores, counted in half shares. */
        uint64_t at = (2 * (uint64_t)i + 1) * all, upto = 0;
        node_of[i] = 0;
        for (uint32_t k = 0; k < nodes; k++) {
            upto += 2 * (uint64_t)members * cores[k];
            if (at < upto) {
                node_of[i] = k;
                break;
            }
        }
    }
}
