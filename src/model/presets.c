/* presets.c: published configurations as data. Called by synth and by whoever plans for a model
 * without its files. */
#include "model/presets.h"

#include <stddef.h>
#include <string.h>

/* clang-format off */
/* Routed experts in MXFP4, the rest as it is. */
#define QUANTIZED                                                                                  \
    "\"quantization_config\":{\"quant_method\":\"compressed-tensors\","                            \
    "\"format\":\"mxfp4-pack-quantized\",\"quantization_status\":\"compressed\","                  \
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"input_activations\":null,"         \
    "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\","     \
    "\"symmetric\":true,\"dynamic\":false,\"scale_dtype\":\"torch.uint8\"}}},"                     \
    "\"ignore\":[\"re:.*self_attn.*\",\"re:.*shared_experts.*\","                                  \
    "\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\",\"re:.*lm_head.*\",\"re:.*vision_tower.*\","   \
    "\"re:.*mm_projector.*\"]}"

/* Kimi K3: 93 layers, of which 24 MLA; 896 experts. */
static const char kimi_k3[] =
    "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
    "\"bos_token_id\":163584,\"eos_token_id\":163586,\"pad_token_id\":163839,"
    "\"media_placeholder_token_id\":163605,"
    "\"image_placeholder\":\"<|kimi_image_placeholder|>\",\"tie_word_embeddings\":false,"
    "\"dtype\":\"bfloat16\",\"text_config\":{\"architectures\":[\"KimiLinearForCausalLM\"],"
    "\"model_type\":\"kimi_linear\",\"vocab_size\":163840,\"hidden_size\":7168,"
    "\"num_hidden_layers\":93,\"num_attention_heads\":96,\"num_key_value_heads\":96,"
    "\"intermediate_size\":33792,\"hidden_act\":\"situ\",\"activation_situ_beta\":4.0,"
    "\"activation_situ_linear_beta\":25.0,\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":1048576,\"initializer_range\":0.02,\"q_lora_rank\":1536,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"mla_use_nope\":true,\"mla_use_output_gate\":true,\"num_experts\":896,"
    "\"num_experts_per_token\":16,\"num_shared_experts\":2,\"moe_intermediate_size\":3072,"
    "\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":true,"
    "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,"
    "\"routed_scaling_factor\":1.0,\"use_grouped_topk\":true,\"num_expert_group\":1,"
    "\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"first_k_dense_replace\":1,"
    "\"moe_layer_freq\":1,\"attn_res_block_size\":12,\"num_nextn_predict_layers\":0,"
    "\"linear_attn_config\":{\"full_attn_layers\":[4,8,12,16,20,24,28,32,36,40,44,48,52,56,"
    "60,64,68,72,76,80,84,88,92,93],\"kda_layers\":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,"
    "21,22,23,25,26,27,29,30,31,33,34,35,37,38,39,41,42,43,45,46,47,49,50,51,53,54,55,57,"
    "58,59,61,62,63,65,66,67,69,70,71,73,74,75,77,78,79,81,82,83,85,86,87,89,90,91],"
    "\"num_heads\":96,\"head_dim\":128,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
    "\"use_full_rank_gate\":true},\"dtype\":\"bfloat16\","
    QUANTIZED "},\"vision_config\":{\"patch_size\":14,\"init_pos_emb_height\":64,"
    "\"init_pos_emb_width\":64,\"vt_hidden_size\":1024,\"vt_num_hidden_layers\":27,"
    "\"vt_num_attention_heads\":12,\"qkv_hidden_size\":1536,\"vt_intermediate_size\":4096,"
    "\"merge_kernel_size\":[2,2],\"mm_hidden_size\":1024,\"text_hidden_size\":7168}}";

/* Kimi-Linear-48B-A3B. */
static const char kimi_linear[] =
    "{\"architectures\":[\"KimiLinearForCausalLM\"],\"model_type\":\"kimi_linear\","
    "\"vocab_size\":163840,\"hidden_size\":2304,\"num_hidden_layers\":27,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"intermediate_size\":9216,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"max_position_embeddings\":1048576,"
    "\"initializer_range\":0.02,\"q_lora_rank\":null,\"kv_lora_rank\":512,"
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"mla_use_nope\":true,"
    "\"num_experts\":256,\"num_experts_per_token\":8,\"num_shared_experts\":1,"
    "\"moe_intermediate_size\":1024,\"moe_router_activation_func\":\"sigmoid\","
    "\"moe_renormalize\":true,\"routed_scaling_factor\":2.446,\"use_grouped_topk\":true,"
    "\"num_expert_group\":1,\"topk_group\":1,\"topk_method\":\"noaux_tc\","
    "\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"num_nextn_predict_layers\":0,"
    "\"linear_attn_config\":{\"full_attn_layers\":[4,8,12,16,20,24,27],\"kda_layers\":[1,2,3,5,"
    "6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],\"num_heads\":32,\"head_dim\":128,"
    "\"short_conv_kernel_size\":4},\"bos_token_id\":163584,\"eos_token_id\":163586,"
    "\"pad_token_id\":163839,\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\"}";

/* Every K3 feature at toy width. */
static const char tiny[] =
    "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
    "\"bos_token_id\":2560,\"eos_token_id\":2562,\"pad_token_id\":2815,"
    "\"media_placeholder_token_id\":2581,\"image_placeholder\":\"<|kimi_image_placeholder|>\","
    "\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\","
    "\"text_config\":{\"architectures\":[\"KimiLinearForCausalLM\"],\"model_type\":\"kimi_linear\","
    "\"vocab_size\":2816,\"hidden_size\":256,\"num_hidden_layers\":9,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":8,\"intermediate_size\":384,\"hidden_act\":\"situ\","
    "\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0,\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":8192,\"initializer_range\":0.02,\"q_lora_rank\":96,"
    "\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":32,"
    "\"mla_use_nope\":true,\"mla_use_output_gate\":true,\"num_experts\":24,"
    "\"num_experts_per_token\":4,\"num_shared_experts\":1,\"moe_intermediate_size\":64,"
    "\"routed_expert_hidden_size\":128,\"latent_moe_use_norm\":true,"
    "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,"
    "\"routed_scaling_factor\":1.0,\"use_grouped_topk\":true,\"num_expert_group\":1,"
    "\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"first_k_dense_replace\":1,"
    "\"moe_layer_freq\":1,\"attn_res_block_size\":4,\"num_nextn_predict_layers\":0,"
    "\"linear_attn_config\":{\"full_attn_layers\":[4,8,9],\"kda_layers\":[1,2,3,5,6,7],"
    "\"num_heads\":8,\"head_dim\":32,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
    "\"use_full_rank_gate\":true},\"dtype\":\"bfloat16\","
    QUANTIZED "}}";

/* A K3 of 470 MB: larger than caches, small enough for any machine. */
static const char mid[] =
    "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
    "\"bos_token_id\":7936,\"eos_token_id\":7938,\"pad_token_id\":8191,"
    "\"media_placeholder_token_id\":7957,\"image_placeholder\":\"<|kimi_image_placeholder|>\","
    "\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\","
    "\"text_config\":{\"architectures\":[\"KimiLinearForCausalLM\"],\"model_type\":\"kimi_linear\","
    "\"vocab_size\":8192,\"hidden_size\":1024,\"num_hidden_layers\":12,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":8,\"intermediate_size\":2816,\"hidden_act\":\"situ\","
    "\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0,\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":8192,\"initializer_range\":0.02,\"q_lora_rank\":384,"
    "\"kv_lora_rank\":256,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"mla_use_nope\":true,\"mla_use_output_gate\":true,\"num_experts\":64,"
    "\"num_experts_per_token\":8,\"num_shared_experts\":2,\"moe_intermediate_size\":384,"
    "\"routed_expert_hidden_size\":512,\"latent_moe_use_norm\":true,"
    "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,"
    "\"routed_scaling_factor\":1.0,\"use_grouped_topk\":true,\"num_expert_group\":1,"
    "\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"first_k_dense_replace\":1,"
    "\"moe_layer_freq\":1,\"attn_res_block_size\":4,\"num_nextn_predict_layers\":0,"
    "\"linear_attn_config\":{\"full_attn_layers\":[4,8,12],\"kda_layers\":[1,2,3,5,6,7,9,10,11],"
    "\"num_heads\":8,\"head_dim\":128,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
    "\"use_full_rank_gate\":true},\"dtype\":\"bfloat16\","
    QUANTIZED "}}";
/* clang-format on */

const char *model_preset(const char *name) {
    static const struct {
        const char *name, *json;
    } presets[] = {
        {"kimi-k3", kimi_k3}, {"kimi-linear", kimi_linear}, {"tiny", tiny}, {"mid", mid}};
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (strcmp(name, presets[i].name) == 0)
            return presets[i].json;
    return NULL;
}
