/* place_none.c: place.h in a file without hwloc (-Dportable=true): every machine has one node. */
#include "machine/place.h"

struct place *place_open(uint32_t members, const char *synthetic) {
    return NULL;
}
void place_close(struct place *p) {}
uint32_t place_nodes(const struct place *p) {
    return 1;
}
uint32_t place_node_of(const struct place *p, uint32_t member) {
    return 0;
}
void place_member(void *place, uint32_t member) {}
bool place_spread(const struct place *p, void *data, size_t bytes) {
    return true;
}
