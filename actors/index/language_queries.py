"""What is a symbol, a call, an import and a base class in each language: tree-sitter queries, as data.

Captures (one vocabulary for all languages):
  @KIND      the definition node, KIND one of `symbols.KINDS`    @name   its name
  @receiver  the type a method belongs to when it is defined outside of it (Go)
  @call      the name of what is called                          @super  a base class, trait or interface
  @import    the module or name imported                         @attach comments and attributes above a definition
"""

PYTHON = """
(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(module (expression_statement (assignment left: (identifier) @name) @constant))
(class_definition superclasses: (argument_list [(identifier) @super (attribute attribute: (identifier) @super)]))
(call function: [(identifier) @call (attribute attribute: (identifier) @call)])
(decorator [(identifier) @call (attribute attribute: (identifier) @call)])
(import_statement name: [(dotted_name) @import (aliased_import name: (dotted_name) @import)])
(import_from_statement module_name: (_) @import)
(comment) @attach
"""

RUST = """
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
"""

JAVASCRIPT = """
(class_declaration name: (_) @name) @class
(class_heritage (identifier) @super)
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program [(lexical_declaration (variable_declarator name: (identifier) @name)) @constant
          (export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @constant)])
(assignment_expression left: (member_expression property: (property_identifier) @name)
                       right: [(arrow_function) (function_expression)]) @function
(field_definition property: (_) @name value: (arrow_function)) @method
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: (identifier) @call)
(import_statement source: (string (string_fragment) @import))
[(comment) (decorator)] @attach
"""

TYPESCRIPT = """
(class_declaration name: (_) @name) @class
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(type_alias_declaration name: (_) @name) @type
(internal_module name: (_) @name) @module
(module name: (_) @name) @module
(extends_clause value: (identifier) @super)
(implements_clause [(type_identifier) @super (generic_type name: (type_identifier) @super)])
(extends_type_clause [(type_identifier) @super (generic_type name: (type_identifier) @super)])
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(function_signature name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(abstract_method_signature name: (_) @name) @method
(method_signature name: (_) @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program [(lexical_declaration (variable_declarator name: (identifier) @name)) @constant
          (export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @constant)])
(assignment_expression left: (member_expression property: (property_identifier) @name)
                       right: [(arrow_function) (function_expression)]) @function
(public_field_definition name: (_) @name value: (arrow_function)) @method
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: (identifier) @call)
(import_statement source: (string (string_fragment) @import))
[(comment) (decorator)] @attach
"""

GO = """
(function_declaration name: (identifier) @name) @function
(method_declaration
  receiver: (parameter_list (parameter_declaration
    type: [(type_identifier) @receiver
           (pointer_type [(type_identifier) @receiver (generic_type type: (type_identifier) @receiver)])
           (generic_type type: (type_identifier) @receiver)]))
  name: (field_identifier) @name) @method
(type_declaration (type_spec name: (type_identifier) @name type: (struct_type))) @struct
(type_declaration (type_spec name: (type_identifier) @name type: (interface_type))) @interface
(type_declaration (type_spec name: (type_identifier) @name
  type: [(function_type) (map_type) (slice_type) (type_identifier) (qualified_type) (pointer_type)])) @type
(source_file (const_declaration (const_spec name: (identifier) @name)) @constant)
(source_file (var_declaration (var_spec name: (identifier) @name)) @constant)
(call_expression function: [(identifier) @call (selector_expression field: (field_identifier) @call)])
(import_spec path: (interpreted_string_literal) @import)
(comment) @attach
"""

JAVA = """
(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(annotation_type_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(superclass [(type_identifier) @super (generic_type (type_identifier) @super)])
(super_interfaces (type_list [(type_identifier) @super (generic_type (type_identifier) @super)]))
(extends_interfaces (type_list [(type_identifier) @super (generic_type (type_identifier) @super)]))
(method_invocation name: (identifier) @call)
(object_creation_expression type: (type_identifier) @call)
(import_declaration (scoped_identifier) @import)
[(line_comment) (block_comment)] @attach
"""

C = """
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @function
(function_definition declarator: (pointer_declarator
  declarator: (function_declarator declarator: (identifier) @name))) @function
(function_definition declarator: (pointer_declarator declarator: (pointer_declarator
  declarator: (function_declarator declarator: (identifier) @name)))) @function
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(union_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(preproc_function_def name: (identifier) @name) @macro
(preproc_def name: (identifier) @name) @constant
(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)])
(preproc_include path: (_) @import)
(comment) @attach
"""

CPP = """
(function_definition declarator: (_ [(identifier) (field_identifier) (destructor_name) (operator_name)] @name)
  ) @function
(function_definition declarator: (function_declarator declarator: (qualified_identifier) @name)) @function
(function_definition declarator: (_ declarator: (function_declarator declarator:
  [(identifier) (field_identifier) (qualified_identifier) (operator_name)] @name))) @function
(function_definition declarator: (_ (function_declarator declarator:
  [(identifier) (field_identifier) (qualified_identifier) (operator_name)] @name))) @function
(class_specifier name: (_) @name body: (_)) @class
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @struct
(enum_specifier name: (_) @name body: (_)) @enum
(namespace_definition name: (_) @name) @module
(type_definition declarator: (type_identifier) @name) @type
(alias_declaration name: (type_identifier) @name) @type
(concept_definition name: (identifier) @name) @type
(preproc_function_def name: (identifier) @name) @macro
(preproc_def name: (identifier) @name) @constant
(base_class_clause [(type_identifier) @super (qualified_identifier name: (type_identifier) @super)
                    (template_type name: (type_identifier) @super)])
(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)
                            (qualified_identifier name: (identifier) @call)])
(preproc_include path: (_) @import)
(comment) @attach
"""

CSHARP = """
(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(struct_declaration name: (identifier) @name) @struct
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(delegate_declaration name: (identifier) @name) @type
(namespace_declaration name: (_) @name) @module
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(property_declaration name: (identifier) @name) @property
(local_function_statement name: (identifier) @name) @function
(base_list [(identifier) @super (generic_name (identifier) @super)])
(invocation_expression function: [(identifier) @call (member_access_expression name: (identifier) @call)])
(object_creation_expression type: (identifier) @call)
(using_directive (_) @import)
(comment) @attach
"""

RUBY = """
(class name: (_) @name) @class
(module name: (_) @name) @module
(method name: (_) @name) @method
(singleton_method name: (_) @name) @method
(assignment left: (constant) @name) @constant
(superclass [(constant) @super (scope_resolution name: (constant) @super)])
(call method: (identifier) @call)
(comment) @attach
"""

PHP = """
(class_declaration name: (name) @name) @class
(interface_declaration name: (name) @name) @interface
(trait_declaration name: (name) @name) @trait
(enum_declaration name: (name) @name) @enum
(method_declaration name: (name) @name) @method
(function_definition name: (name) @name) @function
(base_clause (name) @super)
(class_interface_clause (name) @super)
(function_call_expression function: (name) @call)
(member_call_expression name: (name) @call)
(scoped_call_expression name: (name) @call)
(object_creation_expression (name) @call)
(namespace_use_clause (qualified_name) @import)
(comment) @attach
"""

KOTLIN = """
(class_declaration name: (identifier) @name) @class
(object_declaration name: (identifier) @name) @class
(function_declaration name: (identifier) @name) @function
(type_alias type: (identifier) @name) @type
(delegation_specifier [(user_type (identifier) @super)
                       (constructor_invocation (user_type (identifier) @super))])
(call_expression [(identifier) @call (navigation_expression (identifier) @call .)])
(import (qualified_identifier) @import)
[(line_comment) (block_comment)] @attach
"""

SWIFT = """
(class_declaration name: (_) @name) @class
(protocol_declaration name: (_) @name) @interface
(function_declaration name: (simple_identifier) @name) @function
(protocol_function_declaration name: (simple_identifier) @name) @function
(init_declaration "init" @name) @method
(typealias_declaration name: (type_identifier) @name) @type
(inheritance_specifier inherits_from: (user_type (type_identifier) @super))
(call_expression [(simple_identifier) @call
                  (navigation_expression suffix: (navigation_suffix suffix: (simple_identifier) @call))])
(import_declaration (identifier) @import)
[(comment) (multiline_comment)] @attach
"""

SCALA = """
(class_definition name: (identifier) @name) @class
(object_definition name: (identifier) @name) @class
(trait_definition name: (identifier) @name) @trait
(enum_definition name: (identifier) @name) @enum
(function_definition name: (identifier) @name) @function
(function_declaration name: (identifier) @name) @function
(type_definition name: (type_identifier) @name) @type
(extends_clause type: (type_identifier) @super)
(call_expression function: [(identifier) @call (field_expression field: (identifier) @call)])
(import_declaration) @import
[(comment) (block_comment)] @attach
"""

BASH = """
(function_definition name: (word) @name) @function
(program (variable_assignment name: (variable_name) @name) @constant)
(command name: (command_name (word) @call))
(comment) @attach
"""

LUA = """
(function_declaration name: [(identifier) @name (dot_index_expression field: (identifier) @name)
                             (method_index_expression method: (identifier) @name)]) @function
(assignment_statement (variable_list name: [(identifier) @name (dot_index_expression field: (identifier) @name)])
                      (expression_list value: (function_definition))) @function
(function_call name: [(identifier) @call (dot_index_expression field: (identifier) @call)
                      (method_index_expression method: (identifier) @call)])
(comment) @attach
"""

ELIXIR = """
(call target: (identifier) @_key (arguments (alias) @name) (#any-of? @_key "defmodule" "defprotocol")) @module
(call target: (identifier) @_key
  (arguments [(identifier) @name (call target: (identifier) @name)
              (binary_operator left: (call target: (identifier) @name))])
  (#any-of? @_key "def" "defp" "defmacro" "defmacrop")) @function
(call target: (dot right: (identifier) @call))
(comment) @attach
"""

DART = """
(class_definition name: (identifier) @name) @class
(mixin_declaration (identifier) @name) @class
(enum_declaration name: (identifier) @name) @enum
(comment) @attach
"""

ZIG = """
(function_declaration name: (identifier) @name) @function
(call_expression function: [(identifier) @call (field_expression member: (identifier) @call)])
(comment) @attach
"""

HASKELL = """
(function name: (variable) @name) @function
(data_type name: (name) @name) @type
(newtype name: (name) @name) @type
(class name: (name) @name) @interface
(comment) @attach
"""

JULIA = """
(function_definition (signature (call_expression (identifier) @name))) @function
(struct_definition (type_head (identifier) @name)) @struct
(module_definition name: (identifier) @name) @module
(call_expression (identifier) @call)
[(line_comment) (block_comment)] @attach
"""

OCAML = """
(value_definition (let_binding pattern: (value_name) @name)) @function
(type_definition (type_binding name: (type_constructor) @name)) @type
(module_definition (module_binding (module_name) @name)) @module
(comment) @attach
"""

PERL = """
(function_definition name: (identifier) @name) @function
(comments) @attach
"""

SOLIDITY = """
(contract_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(library_declaration name: (identifier) @name) @class
(struct_declaration name: (identifier) @name) @struct
(enum_declaration name: (identifier) @name) @enum
(function_definition name: (identifier) @name) @function
(modifier_definition name: (identifier) @name) @function
(comment) @attach
"""

SQL = """
(create_table (object_reference name: (identifier) @name)) @type
(create_view (object_reference name: (identifier) @name)) @type
(create_function (object_reference name: (identifier) @name)) @function
(comment) @attach
"""

HCL = """
(body (block (identifier) . (string_lit (template_literal) @name)) @type)
(comment) @attach
"""

PROTO = """
(message (message_name) @name) @struct
(enum (enum_name) @name) @enum
(service (service_name) @name) @interface
(rpc (rpc_name) @name) @method
(comment) @attach
"""
