/* place_hwloc.c: place.h over hwloc. Called by the engine when it opens.
 * Invariant that bites: hwloc counts the cores of the machine or of the container, while this
 * process may have been given fewer (taskset); members must not be bound beyond those. */
#include "machine/place.h"

#include <hwloc.h>
#include <stdlib.h>

struct place {
    hwloc_topology_t topology;
    uint32_t nodes, members;
    hwloc_bitmap_t cores[PLACE_NODES]; /* those of the node, counted among nodes in use */
    hwloc_bitmap_t memory;             /* the nodes in use */
    uint32_t *node_of;                 /* [members] */
};

static bool read_machine(struct place *p, const char *synthetic) {
    if (hwloc_topology_init(&p->topology) != 0)
        return false;
    /* Caches are nobody's question here. Groups must stay: a node that lost the object around it
     * would be given the cores of the whole machine. */
    hwloc_topology_set_cache_types_filter(p->topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_icache_types_filter(p->topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    /* What cpuid knows beyond the kernel costs a visit to every core. */
    hwloc_topology_set_components(p->topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    if (synthetic && hwloc_topology_set_synthetic(p->topology, synthetic) != 0)
        return false;
    return hwloc_topology_load(p->topology) == 0;
}

/* The cores of a node that this process may use, by the thread that opens it as cpu_count does;
 * NULL without any. */
static hwloc_bitmap_t cores_of(const struct place *p, hwloc_obj_t node) {
    hwloc_bitmap_t cores = hwloc_bitmap_dup(node->cpuset), allowed = hwloc_bitmap_alloc();
    if (cores && allowed && hwloc_get_cpubind(p->topology, allowed, HWLOC_CPUBIND_THREAD) == 0 &&
        !hwloc_bitmap_iszero(allowed))
        hwloc_bitmap_and(cores, cores, allowed);
    hwloc_bitmap_free(allowed);
    if (cores && hwloc_bitmap_iszero(cores)) {
        hwloc_bitmap_free(cores);
        return NULL;
    }
    return cores;
}

/* Nodes with cores of their own. Memory without cores is left out, and so is a second kind of
 * memory beside the same cores: which of the two should hold what is not for this file to say. */
static void find_nodes(struct place *p) {
    hwloc_obj_t node = NULL;
    while (p->nodes < PLACE_NODES &&
           (node = hwloc_get_next_obj_by_type(p->topology, HWLOC_OBJ_NUMANODE, node))) {
        hwloc_bitmap_t cores = cores_of(p, node);
        bool known = !cores;
        for (uint32_t k = 0; k < p->nodes && !known; k++)
            known = hwloc_bitmap_intersects(cores, p->cores[k]);
        if (known) {
            hwloc_bitmap_free(cores);
            continue;
        }
        p->cores[p->nodes++] = cores;
        hwloc_bitmap_or(p->memory, p->memory, node->nodeset);
    }
}

/* Cores, not their threads: two of these share what a member keeps busy. */
static uint32_t count_cores(const struct place *p, uint32_t node) {
    int n = hwloc_get_nbobjs_inside_cpuset_by_type(p->topology, p->cores[node], HWLOC_OBJ_CORE);
    return n > 0 ? (uint32_t)n : (uint32_t)hwloc_bitmap_weight(p->cores[node]);
}

struct place *place_open(uint32_t members, const char *synthetic) {
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->members = members;
    p->node_of = calloc(members, sizeof *p->node_of);
    p->memory = hwloc_bitmap_alloc();
    if (!p->node_of || !p->memory || !read_machine(p, synthetic)) {
        place_close(p);
        return NULL;
    }
    find_nodes(p);
    uint32_t cores[PLACE_NODES];
    for (uint32_t k = 0; k < p->nodes; k++)
        cores[k] = count_cores(p, k);
    place_share(cores, p->nodes, p->node_of, members);
    return p;
}

void place_close(struct place *p) {
    if (!p)
        return;
    for (uint32_t k = 0; k < p->nodes; k++)
        hwloc_bitmap_free(p->cores[k]);
    hwloc_bitmap_free(p->memory);
    if (p->topology)
        hwloc_topology_destroy(p->topology);
    free(p->node_of);
    free(p);
}

uint32_t place_nodes(const struct place *p) {
    return p && p->nodes > 1 ? p->nodes : 1;
}

uint32_t place_node_of(const struct place *p, uint32_t member) {
    return p && member < p->members ? p->node_of[member] : 0;
}

void place_member(void *place, uint32_t member) {
    const struct place *p = place;
    if (place_nodes(p) == 1 || member >= p->members)
        return;
    /* Refused where a container forbids it: then the system places the member as it always did. */
    (void)hwloc_set_cpubind(p->topology, p->cores[p->node_of[member]], HWLOC_CPUBIND_THREAD);
}

bool place_spread(const struct place *p, void *data, size_t bytes) {
    if (place_nodes(p) == 1)
        return true;
    return hwloc_set_area_membind(p->topology, data, bytes, p->memory, HWLOC_MEMBIND_INTERLEAVE,
                                  HWLOC_MEMBIND_BYNODESET) == 0;
}
