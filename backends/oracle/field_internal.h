// Shared by the field_*.cc files: conversion of operands, and one function per class of ops.
#pragma once

#include <algorithm>
#include <vector>

#include "backends/oracle/field.h"
#include "backends/oracle/internal.h"

namespace twinrun::oracle {

inline bool in_field(const Tensor& t) { return t.dtype() == DType::kF64; }
inline TensorType field_type(Dims dims) { return {DType::kF64, std::move(dims)}; }

// A tensor as elements of the field. Integers and predicates become the elements of their value.
inline Tensor field_of(const Tensor& t) {
  if (in_field(t)) return t;
  Tensor out = Tensor::empty(field_type(t.dims()));
  const auto to = out.as<Field61>();
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = Field61::of(t.dtype() == DType::kPred ? t.as<const uint8_t>()[i]
                                                  : t.as<const int32_t>()[i]);
  return out;
}

Result<Tensor> field_elementwise(const FieldPoint& point, const Op& op,
                                 std::span<const Tensor> operands, ThreadPool* pool);
Tensor field_dot(const Op& op, std::span<const Tensor> operands, ThreadPool* pool);
Tensor field_reduce(const FieldPoint& point, const Op& op, const Tensor& x, ThreadPool* pool);
Tensor field_scatter_add(const Op& op, const Tensor& ids, const Tensor& dy);
Tensor field_pooling(const FieldPoint& point, const Op& op, const Tensor& x, ThreadPool* pool);
Tensor field_unpooling(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                       ThreadPool* pool);

}  // namespace twinrun::oracle
