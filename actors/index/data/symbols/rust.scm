(function_item name: (identifier) @name) @function
(function_signature_item name: (identifier) @name) @function
(struct_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(union_item name: (type_identifier) @name) @struct
(trait_item name: (type_identifier) @name) @trait
(mod_item name: (identifier) @name body: (_)) @module
(type_item name: (type_identifier) @name) @type
(const_item name: (identifier) @name) @constant
(static_item name: (identifier) @name) @constant
(macro_definition name: (identifier) @name) @macro
(impl_item type: [(type_identifier) @name (generic_type type: (type_identifier) @name)
                  (generic_type type: (scoped_type_identifier name: (type_identifier) @name))
                  (scoped_type_identifier name: (type_identifier) @name) (reference_type) @name]) @impl
(impl_item trait: [(type_identifier) @super (generic_type type: (type_identifier) @super)
                   (scoped_type_identifier name: (type_identifier) @super)])
(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)
                            (scoped_identifier name: (identifier) @call)
                            (generic_function function: [(identifier) @call
                              (scoped_identifier name: (identifier) @call)
                              (field_expression field: (field_identifier) @call)])])
(macro_invocation macro: (identifier) @call)
(use_declaration argument: (_) @import)
[(line_comment) (block_comment) (attribute_item)] @attach
