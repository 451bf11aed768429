/* tier.c: what all tiers share. */
#include "cache/tier.h"

const char *tier_result_name(enum tier_result r) {
    switch (r) {
    case TIER_OK: return "ok";
    case TIER_GONE: return "gone";
    case TIER_DAMAGED: return "damaged";
    case TIER_FAILED: return "failed";
    case TIER_DECLINED: return "declined";
    case TIER_RESULTS: break;
    }
    return "?";
}
