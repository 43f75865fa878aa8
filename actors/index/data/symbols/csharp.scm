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
