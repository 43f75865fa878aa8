(call target: (identifier) @_key (arguments (alias) @name) (#any-of? @_key "defmodule" "defprotocol")) @module
(call target: (identifier) @_key
  (arguments [(identifier) @name (call target: (identifier) @name)
              (binary_operator left: (call target: (identifier) @name))])
  (#any-of? @_key "def" "defp" "defmacro" "defmacrop")) @function
(call target: (dot right: (identifier) @call))
(comment) @attach
