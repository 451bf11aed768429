/* vision.c: counts the tensors of the vision tower and its projector, all BF16 and without biases:
 *
 *   patch_embed.proj            [hidden, 3, patch, patch]
 *   patch_embed.pos_emb         [grid height, grid width, hidden]
 *   encoder.blocks.{i}          wqkv [3*qkv, hidden], wo [hidden, qkv], norm0 and norm1
 *                               [hidden], mlp.fc0 [inter, hidden], mlp.fc1 [hidden, inter]
 *   encoder.final_layernorm     [hidden]
 *   mm_projector                proj.0 [merged, merged], proj.2 [text hidden, merged], post_norm
 *                               [text hidden], where merged = hidden * merge height * merge width
 *
 * For Kimi K3 the sum is 894,717,952 bytes, the vision share of the published total. Defaults are
 * K3's. */
#include "model/vision.h"

static uint64_t field(struct json_fields *f, const char *name, int64_t fallback, int64_t high) {
    return (uint64_t)json_field_integer(f, name, false, fallback, 1, high);
}

/* The patches that are merged into one token: the product of merge_kernel_size. */
static uint64_t merged_patches(struct json_fields *f) {
    const json_t *v = json_field(f, "merge_kernel_size");
    uint64_t product = 1;
    if (!v)
        return 4;
    bool good = json_is_array(v) && json_array_size(v) == 2;
    for (size_t i = 0; good && i < 2; i++) {
        const json_t *n = json_array_get(v, i);
        good = json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= 16;
        if (good)
            product *= (uint64_t)json_integer_value(n);
    }
    if (!good)
        json_field_refuse(f, "merge_kernel_size", v, WEIR_BAD_FILE,
                          "must be a list of two integers from 1 to 16");
    return product;
}

uint64_t model_vision_bytes(struct json_fields *f, uint32_t text_hidden) {
    const json_t *object = json_field_object(f, "vision_config", false);
    if (!object)
        return 0;
    struct json_fields v = *f;
    v.first = object;
    v.second = NULL;
    v.scope = "vision_config.";
    uint64_t hidden = field(&v, "vt_hidden_size", 1024, 1 << 16);
    uint64_t blocks = field(&v, "vt_num_hidden_layers", 27, 1024);
    uint64_t qkv = field(&v, "qkv_hidden_size", 1536, 1 << 16); /* wider than hidden in K3 */
    uint64_t inter = field(&v, "vt_intermediate_size", 4096, 1 << 19);
    uint64_t patch = field(&v, "patch_size", 14, 256);
    uint64_t grid = field(&v, "init_pos_emb_height", 64, 4096);
    grid *= field(&v, "init_pos_emb_width", 64, 4096);
    uint64_t merged = hidden * merged_patches(&v);
    f->status = v.status;
    if (f->status)
        return 0;
    uint64_t block = 4 * qkv * hidden + 2 * hidden + 2 * inter * hidden;
    uint64_t tower = hidden * 3 * patch * patch + grid * hidden + blocks * block + hidden;
    uint64_t projector = merged * merged + text_hidden * merged + text_hidden;
    return 2 * (tower + projector);
}
